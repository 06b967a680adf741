//! The documents of a YAML stream, each parsed separately.

use serde_json::Value;

use super::schema;

/// One document of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct YamlDocument<'a> {
    text: &'a str,
    /// The number of lines of the stream before it.
    lines_before: u64,
}

/// Splits a stream at its `---` lines, so that an invalid document does not affect the others: YAML forbids such a line
/// within a document. Text before the first such line counts as a document only if it has content.
pub(super) fn documents(text: &str) -> Vec<YamlDocument<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    let mut current = YamlDocument { text: "", lines_before: 0 };
    let (mut start, mut end) = (0, 0);
    for (number, line) in (0..).zip(text.split_inclusive('\n')) {
        if is_marker(line) {
            documents.push(current);
            current = YamlDocument { text: "", lines_before: number };
            start = end;
        }
        end += line.len();
        current.text = &text[start..end];
    }
    documents.push(current);
    documents.retain(|document| is_marker(document.text) || has_content(document.text));
    documents
}

/// True for `---`, alone or before content.
fn is_marker(line: &str) -> bool {
    line.strip_prefix("---")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// True if the text contains anything but comments, directives and empty lines.
fn has_content(text: &str) -> bool {
    text.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with(['#', '%']))
}

impl YamlDocument<'_> {
    /// Returns the value of the document without its nulls, or the error and its position in the stream.
    pub(super) fn value(&self) -> Result<Value, String> {
        // The default budget bounds depth, nodes and aliases. A snippet would make the message many lines long.
        let options = serde_saphyr::options! { with_snippet: false };
        let mut value: Value = serde_saphyr::from_str_with_options(self.text, options)
            .map_err(|error| self.message(&error))?;
        schema::drop_nulls(&mut value);
        Ok(value)
    }

    fn message(&self, error: &serde_saphyr::Error) -> String {
        let options = serde_saphyr::render_options! {
            formatter: &serde_saphyr::UserMessageFormatter,
            line_offset: self.lines_before,
        };
        error.render_with_options(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_documents_are_split_with_their_line_numbers() {
        let lines = |text| documents(text).iter().map(|d| d.lines_before).collect::<Vec<_>>();
        assert_eq!(lines(""), [0_u64; 0]);
        assert_eq!(lines("# a comment\n"), [0_u64; 0]);
        assert_eq!(lines("a: 1\n"), [0]);
        assert_eq!(lines("---\na: 1\n"), [0]);
        assert_eq!(lines("# a comment\n---\na: 1\n"), [1]);
        assert_eq!(lines("a: 1\n---\n---\nb: 2"), [0, 1, 2]);
        assert_eq!(lines("a: |\n  text\n  ---\n"), [0]);
        assert_eq!(lines("--- {a: 1}\r\n---\r\nb: 2"), [0, 1]);
        assert_eq!(lines("\u{feff}---\na: 1\n---x: 2\n"), [0]);
    }
}
