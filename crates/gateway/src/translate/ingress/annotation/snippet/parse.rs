//! The syntax of nginx's configuration: directives of words, which end with `;` or a block.

/// A directive of a snippet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SnippetDirective {
    /// Number of the line on which it begins, from 1.
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) arguments: Vec<String>,
}

/// Parses the directives of a snippet.
///
/// # Errors
/// If a directive has a block or is not complete. The message names the line.
pub(super) fn parse(snippet: &str) -> Result<Vec<SnippetDirective>, String> {
    let mut reader = SnippetReader { rest: snippet, line: 1 };
    let mut directives = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut first_line = 1;
    while let Some(token) = reader.next()? {
        match token {
            SnippetToken::Word(word) => {
                if words.is_empty() {
                    first_line = reader.line;
                }
                words.push(word);
            }
            SnippetToken::End if words.is_empty() => {}
            SnippetToken::End => {
                let arguments = words.split_off(1);
                let name = words.pop().unwrap_or_default();
                directives.push(SnippetDirective { line: first_line, name, arguments });
            }
            SnippetToken::Block => {
                let name = words.first().map(|name| format!("`{name}`: ")).unwrap_or_default();
                return Err(format!("line {}: {name}blocks are not supported", reader.line));
            }
        }
    }
    match words.first() {
        Some(name) => Err(format!("line {first_line}: `{name}` does not end with `;`")),
        None => Ok(directives),
    }
}

enum SnippetToken {
    Word(String),
    End,
    Block,
}

struct SnippetReader<'s> {
    rest: &'s str,
    line: usize,
}

impl SnippetReader<'_> {
    /// Returns the next token; `None` at the end.
    fn next(&mut self) -> Result<Option<SnippetToken>, String> {
        self.skip_blanks();
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        match first {
            ';' => self.advance(1),
            '{' | '}' => {
                self.advance(1);
                return Ok(Some(SnippetToken::Block));
            }
            '"' | '\'' => return self.quoted(first).map(Some),
            _ => return Ok(Some(self.plain())),
        }
        Ok(Some(SnippetToken::End))
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

    /// Reads a word up to a blank or the end of its directive. A backslash takes the next character as it is, but for
    /// `n`, `r` and `t`.
    fn plain(&mut self) -> SnippetToken {
        let is_end = |char: char| char.is_whitespace() || [';', '{', '}'].contains(&char);
        self.word(is_end)
    }

    /// Reads a word in quotes.
    fn quoted(&mut self, quote: char) -> Result<SnippetToken, String> {
        let line = self.line;
        self.advance(1);
        let word = self.word(|char| char == quote);
        if self.rest.is_empty() {
            return Err(format!("line {line}: a {quote} is not closed"));
        }
        self.advance(1);
        let is_separated = |next: char| next.is_whitespace() || next == ';';
        if !self.rest.chars().next().is_none_or(is_separated) {
            return Err(format!("line {}: a blank is missing after {quote}", self.line));
        }
        Ok(word)
    }

    fn word(&mut self, is_end: impl Fn(char) -> bool) -> SnippetToken {
        let mut word = String::new();
        let mut characters = self.rest.char_indices();
        let mut length = self.rest.len();
        while let Some((at, char)) = characters.next() {
            if is_end(char) {
                length = at;
                break;
            }
            match char {
                '\\' => word.extend(characters.next().map(|(_, escaped)| match escaped {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    other => other,
                })),
                char => word.push(char),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(snippet: &str) -> Vec<String> {
        let text =
            |it: SnippetDirective| format!("{} {} {}", it.line, it.name, it.arguments.join("|"));
        parse(snippet).unwrap().into_iter().map(text).collect()
    }

    #[test]
    fn directives_have_lines_and_words() {
        let snippet = "# first\nmore_set_headers \"A: b c\" 'D: \"e\"';\n\n add_header X-Y  z\n always; ;deny all;";
        let directives =
            ["2 more_set_headers A: b c|D: \"e\"", "4 add_header X-Y|z|always", "5 deny all"];
        assert_eq!(texts(snippet), directives);
        assert_eq!(texts(r#"a "b\"c" d\;e;"#), [r#"1 a b"c|d;e"#]);
        assert!(texts(" \n# only a comment").is_empty());
    }

    #[test]
    fn an_incomplete_directive_is_an_error_with_its_line() {
        let cases = [
            ("a b;\nc d", "line 2: `c` does not end with `;`"),
            ("a b;\nif ($x) { c d; }", "line 2: `if`: blocks are not supported"),
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
