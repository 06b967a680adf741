//! Concurrency levels: one by one up to 32, then in steps of a ninth to a sixteenth of the number.

/// Number of steps.
pub(super) const LEVELS: usize = 72;
/// Number at which the last step ends.
pub(super) const MOST: u32 = 1023;

/// Number up to which each number is a step of its own.
const SINGLE: u32 = 32;
/// Steps in each doubling beyond that.
const IN_A_DOUBLING: u32 = 8;

/// Returns the step that a number belongs to.
pub(super) fn step(number: u32) -> usize {
    if number <= SINGLE {
        return number.saturating_sub(1) as usize;
    }
    let number = number.min(MOST);
    let doubling = number.ilog2();
    let part = number >> (doubling - IN_A_DOUBLING.ilog2());
    (SINGLE + (doubling - SINGLE.ilog2()) * IN_A_DOUBLING + part % IN_A_DOUBLING) as usize
}

/// Returns the middle of a step, which represents it.
pub(super) fn number(step: usize) -> f64 {
    let step = step as u32;
    if step < SINGLE {
        return f64::from(step) + 1.0;
    }
    let (doubling, part) = ((step - SINGLE) / IN_A_DOUBLING, (step - SINGLE) % IN_A_DOUBLING);
    let width = (SINGLE / IN_A_DOUBLING) << doubling;
    f64::from((IN_A_DOUBLING + part) * width) + f64::from(width - 1) / 2.0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_number_maps_to_a_level_within_one_sixteenth() {
        let mut before = 0;
        for each in 1..=MOST {
            let at = step(each);
            assert!(at == before || at == before + 1, "{each}");
            assert!(
                (number(at) - f64::from(each)).abs() <= f64::from(each) / 16.0 + 0.01,
                "{each}"
            );
            before = at;
        }
        assert_eq!((step(0), step(1), before, step(u32::MAX)), (0, 0, LEVELS - 1, LEVELS - 1));
    }
}
