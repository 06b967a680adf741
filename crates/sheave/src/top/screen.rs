//! The terminal: sets it up, draws, reads keys, and restores it.

use std::io::{self, Stdout, Write};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Color, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};

use super::table::{LineStyle, SortOrder, TableLine};

/// The terminal in raw mode, on the alternate screen.
pub(super) struct TerminalScreen {
    stdout: Stdout,
    /// True unless `NO_COLOR` is set; see <https://no-color.org>.
    is_coloured: bool,
}

/// Command of a key press.
pub(super) enum KeyCommand {
    Quit,
    Sort(SortOrder),
    /// Redraw: the size has changed, or the key has no meaning.
    Other,
}

impl TerminalScreen {
    pub(super) fn enter() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        // From here on, dropping the screen restores the terminal.
        let is_coloured = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut screen = Self { stdout: io::stdout(), is_coloured };
        execute!(screen.stdout, EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Draws a title and as many lines as fit, each cut at the terminal's width.
    pub(super) fn draw(
        &mut self,
        title: &str,
        lines: impl FnOnce(usize) -> Vec<TableLine>,
    ) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let (width, height) = (usize::from(width), usize::from(height));
        let lines = lines(width);
        let fitting = height.saturating_sub(1).min(lines.len());
        queue!(self.stdout, MoveTo(0, 0))?;
        self.line(title, width, LineStyle::Plain)?;
        for line in &lines[..fitting] {
            queue!(self.stdout, Print("\r\n"))?;
            self.line(&line.text, width, line.style)?;
        }
        queue!(self.stdout, Clear(ClearType::FromCursorDown))?;
        self.stdout.flush()
    }

    /// Waits up to the given time for a key press.
    pub(super) fn key(&self, timeout: Duration) -> io::Result<Option<KeyCommand>> {
        if !event::poll(timeout)? {
            return Ok(None);
        }
        let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) =
            event::read()?
        else {
            return Ok(Some(KeyCommand::Other));
        };
        Ok(Some(match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => KeyCommand::Quit,
            KeyCode::Char('q') | KeyCode::Esc => KeyCommand::Quit,
            KeyCode::Char(key) => {
                SortOrder::of_key(key).map_or(KeyCommand::Other, KeyCommand::Sort)
            }
            _ => KeyCommand::Other,
        }))
    }

    fn line(&mut self, text: &str, width: usize, style: LineStyle) -> io::Result<()> {
        match style {
            LineStyle::Heading => queue!(self.stdout, SetAttribute(Attribute::Reverse))?,
            LineStyle::Backend => queue!(self.stdout, SetAttribute(Attribute::Bold))?,
            LineStyle::Bad if self.is_coloured => {
                queue!(self.stdout, SetForegroundColor(Color::Red))?;
            }
            LineStyle::Full if self.is_coloured => {
                queue!(self.stdout, SetForegroundColor(Color::Yellow))?;
            }
            LineStyle::Plain | LineStyle::Bad | LineStyle::Full => {}
        }
        let text: String = text.chars().take(width).collect();
        queue!(
            self.stdout,
            Print(text),
            SetAttribute(Attribute::Reset),
            SetForegroundColor(Color::Reset),
            Clear(ClearType::UntilNewLine)
        )
    }
}

impl Drop for TerminalScreen {
    fn drop(&mut self) {
        // If restoring fails, there is no place to report it.
        execute!(self.stdout, LeaveAlternateScreen, Show).ok();
        terminal::disable_raw_mode().ok();
    }
}
