//! Lines of 80 columns, with names of others escaped.

pub(super) use crate::terminal_text::escaped;

/// Width of a terminal that is assumed, and of plain output.
pub(super) const WIDTH: usize = 80;

/// Returns the text, escaped, in lines of at most [`WIDTH`] columns. The first begins with `head`, the others with as many
/// spaces. A word that is longer than a line is broken.
pub(crate) fn wrapped(head: &str, text: &str) -> Vec<String> {
    let indent = head.chars().count();
    let room = WIDTH.saturating_sub(indent).max(20);
    let mut lines = vec![String::new()];
    for word in escaped(text).split_whitespace() {
        let characters: Vec<char> = word.chars().collect();
        for piece in characters.chunks(room) {
            let line = lines.last_mut().expect("there is a first line");
            let used = line.chars().count();
            if used == 0 {
                line.extend(piece);
            } else if used + 1 + piece.len() <= room {
                line.push(' ');
                line.extend(piece);
            } else {
                lines.push(piece.iter().collect());
            }
        }
    }
    let line = |(index, text): (usize, String)| match index {
        0 => format!("{head}{text}").trim_end().to_owned(),
        _ => format!("{:indent$}{text}", ""),
    };
    lines.into_iter().enumerate().map(line).collect()
}

/// Returns a table whose columns are as wide as their cells; the first column, of names, is shortened so that the table
/// fits [`WIDTH`] columns. Columns after the names stand at the right.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect();
    let width_of = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heading[column].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..heading.len()).map(width_of).collect();
    let others: usize = widths.iter().skip(1).map(|width| width + 2).sum();
    let names = widths[0].min(WIDTH.saturating_sub(others)).max(8);
    let line = |cells: Vec<&str>| {
        let mut line = format!("{:<names$}", crate::top::shortened(cells[0], names));
        for (cell, width) in cells.iter().zip(&widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        line.trim_end().to_owned()
    };
    let head = line(heading.to_vec());
    let rows = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    [head].into_iter().chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_at_words_and_long_words_are_broken() {
        let lines = wrapped("  - ", &format!("{} {}", "word ".repeat(20), "x".repeat(200)));
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:#?}");
        assert!(lines[0].starts_with("  - word") && lines[1].starts_with("    word"), "{lines:#?}");
        assert_eq!(lines.concat().matches('x').count(), 200);
        assert_eq!(wrapped("label", ""), ["label"]);
    }

    #[test]
    fn table_fits_and_shortens_names_alone() {
        let row = vec!["pod-".repeat(40), "1".to_owned(), "ejected".to_owned()];
        let lines = table(&["POD", "N", "HEALTH"], &[row]);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:#?}");
        assert!(lines[1].ends_with("1  ejected") && lines[1].contains('…'), "{lines:#?}");
    }
}
