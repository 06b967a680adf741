//! The syntax of nginx's configuration: directives of words, which end with `;` or a block.

/// A directive of a snippet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SnippetDirective {
    /// Number of the line on which it begins, from 1.
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
    /// The directives of its block, if it has one.
    pub(super) block: Option<Vec<Self>>,
}

/// Parses the directives of a snippet.
///
/// # Errors
/// If a directive other than `if` has a block, or if one is not complete. The message names the line.
pub(super) fn parse(snippet: &str) -> Result<Vec<SnippetDirective>, String> {
    SnippetReader { rest: snippet, line: 1 }.directives(None)
}

enum SnippetToken {
    Word(String),
    End,
    BlockStart,
    BlockEnd,
}

struct SnippetReader<'s> {
    rest: &'s str,
    line: usize,
}

impl SnippetReader<'_> {
    /// Reads directives to the end of the text, or of the block that begins on a line.
    fn directives(&mut self, block: Option<usize>) -> Result<Vec<SnippetDirective>, String> {
        let mut directives = Vec::new();
        let mut words: Vec<String> = Vec::new();
        let mut first_line = self.line;
        while let Some((line, token)) = self.next()? {
            match token {
                SnippetToken::Word(word) => {
                    if words.is_empty() {
                        first_line = line;
                    }
                    words.push(word);
                }
                SnippetToken::End if words.is_empty() => {}
                SnippetToken::End => directives.extend(directive(first_line, &mut words, None)),
                SnippetToken::BlockStart if block.is_none() && words.first().is_some_and(is_if) => {
                    let within = self.directives(Some(line))?;
                    directives.extend(directive(first_line, &mut words, Some(within)));
                }
                SnippetToken::BlockEnd if block.is_some() && words.is_empty() => {
                    return Ok(directives);
                }
                SnippetToken::BlockEnd if !words.is_empty() => {
                    return Err(unfinished(first_line, &words[0]));
                }
                SnippetToken::BlockStart | SnippetToken::BlockEnd => {
                    let name = words.first().map(|name| format!("`{name}`: ")).unwrap_or_default();
                    return Err(format!("line {line}: {name}blocks are not supported"));
                }
            }
        }
        match (words.first(), block) {
            (Some(name), _) => Err(unfinished(first_line, name)),
            (None, Some(line)) => Err(format!("line {line}: a {{ is not closed")),
            (None, None) => Ok(directives),
        }
    }

    /// Returns the line of the next token, and the token; `None` at the end.
    fn next(&mut self) -> Result<Option<(usize, SnippetToken)>, String> {
        self.skip_blanks();
        let line = self.line;
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let token = match first {
            ';' => SnippetToken::End,
            '{' => SnippetToken::BlockStart,
            '}' => SnippetToken::BlockEnd,
            '"' | '\'' => return Ok(Some((line, self.quoted(first)?))),
            _ => return Ok(Some((line, self.plain()))),
        };
        self.advance(1);
        Ok(Some((line, token)))
    }

    /// Skips blanks and comments.
    fn skip_blanks(&mut self) {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.advance(blank);
            if !self.rest.starts_with('#') {
                return;
            }
            self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    /// Reads a word up to a blank, the end of its directive, or a block. The `{` of a variable (`${name}`) begins none.
    fn plain(&mut self) -> SnippetToken {
        self.word(|char, previous| {
            char.is_whitespace() || char == ';' || char == '{' && previous != Some('$')
        })
    }

    /// Reads a word in quotes.
    fn quoted(&mut self, quote: char) -> Result<SnippetToken, String> {
        let line = self.line;
        self.advance(1);
        let word = self.word(|char, _| char == quote);
        if self.rest.is_empty() {
            return Err(format!("line {line}: a {quote} is not closed"));
        }
        self.advance(1);
        let is_separated = |next: char| next.is_whitespace() || [';', '{', ')'].contains(&next);
        if !self.rest.chars().next().is_none_or(is_separated) {
            return Err(format!("line {}: a blank is missing after {quote}", self.line));
        }
        Ok(word)
    }

    /// Reads a word. A backslash takes a quote or a backslash as it is, and is a control character with `n`, `r` and `t`;
    /// before others it stays, for regular expressions.
    fn word(&mut self, is_end: impl Fn(char, Option<char>) -> bool) -> SnippetToken {
        let mut word = String::new();
        let mut previous = None;
        let mut characters = self.rest.char_indices();
        let mut length = self.rest.len();
        while let Some((at, char)) = characters.next() {
            if is_end(char, previous) {
                length = at;
                break;
            }
            previous = Some(char);
            if char != '\\' {
                word.push(char);
                continue;
            }
            previous = None;
            match characters.next() {
                Some((_, 'n')) => word.push('\n'),
                Some((_, 'r')) => word.push('\r'),
                Some((_, 't')) => word.push('\t'),
                Some((_, escaped @ ('"' | '\'' | '\\'))) => word.push(escaped),
                Some((_, other)) => word.extend(['\\', other]),
                None => word.push('\\'),
            }
        }
        self.advance(length);
        SnippetToken::Word(word)
    }

    fn advance(&mut self, length: usize) {
        let (passed, rest) = self.rest.split_at(length);
        self.line += passed.matches('\n').count();
        self.rest = rest;
    }
}

fn unfinished(line: usize, name: &str) -> String {
    format!("line {line}: `{name}` does not end with `;`")
}

fn is_if(name: &String) -> bool {
    name == "if"
}

/// Returns a directive of these words, if there are any.
fn directive(
    line: usize,
    words: &mut Vec<String>,
    block: Option<Vec<SnippetDirective>>,
) -> Option<SnippetDirective> {
    let mut words = std::mem::take(words).into_iter();
    Some(SnippetDirective { line, name: words.next()?, arguments: words.collect(), block })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(snippet: &str) -> Vec<String> {
        fn text(it: SnippetDirective) -> String {
            let block = it.block.map(|it| it.into_iter().map(text).collect::<Vec<_>>().join(", "));
            let block = block.map(|it| format!(" {{{it}}}")).unwrap_or_default();
            format!("{} {} {}{block}", it.line, it.name, it.arguments.join("|"))
        }
        parse(snippet).unwrap().into_iter().map(text).collect()
    }

    #[test]
    fn directives_have_lines_and_words() {
        let snippet = "# first\nmore_set_headers \"A: b c\" 'D: \"e\"';\n\n add_header X-Y  z\n always; ;deny all;";
        let directives =
            ["2 more_set_headers A: b c|D: \"e\"", "4 add_header X-Y|z|always", "5 deny all"];
        assert_eq!(texts(snippet), directives);
        assert_eq!(texts(r#"a "b\"c" d\;e;"#), [r#"1 a b"c|d\;e"#]);
        let snippet = "if ($a = \"b c\") {\n  return 403;}\nrewrite \"^/\\d{2}\\.x$\" /${b}c;";
        let directives = [r#"1 if ($a|=|b c|) {2 return 403}"#, r"3 rewrite ^/\d{2}\.x$|/${b}c"];
        assert_eq!(texts(snippet), directives);
        assert_eq!(texts("if ($a ~ ^\\w+$){break;}"), [r"1 if ($a|~|^\w+$) {1 break }"]);
        assert!(texts(" \n# only a comment").is_empty());
    }

    #[test]
    fn an_incomplete_directive_is_an_error_with_its_line() {
        let cases = [
            ("a b;\nc d", "line 2: `c` does not end with `;`"),
            ("a b;\nlocation /x { c d; }", "line 2: `location`: blocks are not supported"),
            ("if ($x) {\nif ($y) { c d; } }", "line 2: `if`: blocks are not supported"),
            ("if ($x) {\nc d; ", "line 1: a { is not closed"),
            ("if ($x) { c d }", "line 1: `c` does not end with `;`"),
            ("a \"b;", "line 1: a \" is not closed"),
            ("a \"b\"c;", "line 1: a blank is missing after \""),
            ("}", "line 1: blocks are not supported"),
        ];
        for (snippet, message) in cases {
            assert_eq!(parse(snippet), Err(message.to_owned()), "{snippet}");
        }
    }

    proptest::proptest! {
        /// No text makes the parser fail in another way than by an error, and the line is one of the text.
        #[test]
        fn every_text_is_parsed_or_refused(text in "[a-z\"'\\\\;{}#$\n é]{0,40}") {
            let lines = text.matches('\n').count() + 1;
            if let Ok(directives) = parse(&text) {
                proptest::prop_assert!(directives.iter().all(|it| (1..=lines).contains(&it.line)));
            }
        }
    }
}
