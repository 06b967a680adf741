//! Chooses at random, each endpoint as often as its weight says.

use crate::load::Field;
use crate::rng::Rng;

#[derive(Debug)]
pub(super) struct Random(Rng);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    #[inline(never)]
    pub(super) fn choose(&mut self, field: &Field<'_>) -> Option<usize> {
        let drawn = field.draw(&mut self.0)?;
        if field.is_open(drawn, field.load(drawn)) {
            return Some(drawn);
        }
        self.draw_open(field)
    }

    /// Draws among those that can take a request: each displaces who was drawn before as often as its weight says.
    fn draw_open(&mut self, field: &Field<'_>) -> Option<usize> {
        let (mut drawn, mut total) = (None, 0);
        field.each(0, |member, load| {
            if load.weight == 0 || !field.is_open(member, load) {
                return;
            }
            total += load.weight as usize;
            if self.0.below(total) < load.weight as usize {
                drawn = Some(member);
            }
        });
        drawn
    }
}
