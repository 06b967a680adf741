//! Who is to carry an address, and until when: the decisions of one node about one address.
//!
//! Pure: what is seen goes in with the time, and what is to be done comes out. Nothing here knows how a Lease is written,
//! how a link is asked, or how an address comes to an interface.
//!
//! Two fences keep an address from being carried twice. The Lease: who holds it lets the kernel drop the address before
//! anybody else may take it. The link: nobody takes an address that somebody on the link still answers for. By the second
//! alone a holder goes on while the API server does not answer: nobody else could take over then, and all would lose.

use std::time::Duration;

use super::standing::Standing;

/// Time since the process began.
pub(super) type Moment = Duration;

/// After the last renewal that was seen, a Lease is another's to take. Whole seconds.
pub(super) const DURATION: Duration = Duration::from_secs(4);
/// Between renewals.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// How long the kernel keeps an address that is not renewed: whole seconds.
const LIFETIME_SECONDS: u32 = 3;
/// By how much the kernel may be late in dropping it: 0.2 s were measured.
const LATE: Duration = Duration::from_millis(500);
/// How long the answer of the link holds.
const FRESH: Duration = Duration::from_millis(600);
/// So long before a Lease runs out the link is asked.
const ASK_AHEAD: Duration = Duration::from_millis(300);
/// How long each that is preferred is given to be quicker, where a holder has died.
const TURN: Duration = Duration::from_millis(150);
/// The same where nobody had it: they learn that it is served at different times, half a second apart.
const FIRST_TURN: Duration = Duration::from_millis(700);
/// However many are preferred.
const MOST_TURNS: u32 = 3;
/// Before what failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// Before a write that another overtook.
const SHORT_PAUSE: Duration = Duration::from_millis(50);
/// How long a node has to have been the better place before the address moves, which cuts all connections.
pub(super) const SETTLED: Duration = Duration::from_secs(30);
/// How long who has it keeps it at least.
const KEPT: Duration = Duration::from_secs(60);
/// When it is told on the link that the address is here now: frames get lost.
const TOLD_AFTER: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(2)];
/// Nothing is due.
pub(super) const NEVER: Moment = Moment::MAX;

/// What a Lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// None: it is nobody's.
    pub(super) holder: Option<String>,
    /// Another one with each renewal.
    pub(super) renewal: String,
    /// Who would be a better place.
    pub(super) wanted_by: Option<String>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before then, unless something is seen.
    Wait(Moment),
    /// Ask the link whether somebody has the address.
    Ask,
    /// Tell the link that it is here.
    Tell,
    /// Write the Lease.
    Write(Write),
}

/// What to write to the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// It is ours: taken, or renewed.
    Hold,
    /// We would be a better place.
    Want,
    /// It is another's now. The address has to be dropped before.
    Hand(String),
    /// It is nobody's. The address has to be dropped before.
    Leave,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// Somebody else wrote first.
    Overtaken,
    /// The API server did not answer, or not to the question.
    Silent,
    /// It does not let us.
    Refused,
}

/// What is to become of the address on our interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carry {
    /// It is to be dropped if it is there.
    Not,
    /// What the kernel was told last still holds.
    AsItIs,
    /// The kernel is to keep it for so many seconds from now.
    For(u32),
}

/// What one node knows of one address.
#[derive(Debug)]
pub(super) struct Claim {
    me: String,
    /// Whether it is served here, and who else serves it.
    standing: Option<Standing>,
    /// Since when it has been served here.
    stood: Moment,
    /// What the Lease says; none: there is none.
    said: Option<Said>,
    /// Whether anything is known of the Lease.
    is_known: bool,
    /// Since when we have seen no other renewal.
    renewed: Moment,
    /// Since when it has been whose it is.
    changed: Moment,
    /// The Lease as far as it is ours.
    held: Option<Held>,
    /// When the link was asked last, and whether somebody answered.
    asked: Option<(Moment, bool)>,
    /// Nothing is written before.
    not_before: Moment,
    /// Since when we have been the better place.
    better: Option<Moment>,
    /// No more is asked for before.
    wanted: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    /// When we asked for the last renewal that was granted.
    renewed: Moment,
    /// Until when the kernel keeps the address; none: we do not carry it.
    carried: Option<Carried>,
    /// Whether the API server has not answered since.
    is_cut_off: bool,
}

#[derive(Clone, Copy, Debug)]
struct Carried {
    since: Moment,
    until: Moment,
    /// How often the link has been told.
    told: usize,
}

impl Claim {
    pub(super) fn new(me: String) -> Self {
        Self {
            me,
            standing: None,
            stood: Moment::ZERO,
            said: None,
            is_known: false,
            renewed: Moment::ZERO,
            changed: Moment::ZERO,
            held: None,
            asked: None,
            not_before: Moment::ZERO,
            better: None,
            wanted: Moment::ZERO,
        }
    }

    /// Takes what the Lease says.
    pub(super) fn see(&mut self, said: Option<Said>, now: Moment) {
        let holder = |said: &Option<Said>| said.as_ref()?.holder.clone();
        let renewal = |said: &Option<Said>| said.as_ref().map(|said| said.renewal.clone());
        let is_new = !self.is_known || holder(&said) != holder(&self.said);
        if is_new {
            self.changed = now;
            self.better = None;
        }
        if is_new || renewal(&said) != renewal(&self.said) {
            self.renewed = now;
        }
        self.is_known = true;
        self.said = said;
        if !self.is_ours() {
            self.held = None;
        }
    }

    /// Takes who serves the address; none: nobody here.
    pub(super) fn stand(&mut self, standing: Option<Standing>, now: Moment) {
        if self.standing.is_none() {
            self.stood = now;
        }
        self.standing = standing;
    }

    /// Takes what came of a write that was begun at `asked`.
    pub(super) fn wrote(&mut self, write: &Write, outcome: Outcome, asked: Moment, now: Moment) {
        self.not_before = match outcome {
            Outcome::Done if *write == Write::Hold => asked + RENEW_EVERY,
            Outcome::Done => now,
            Outcome::Overtaken => now + SHORT_PAUSE,
            Outcome::Silent | Outcome::Refused => now + PAUSE,
        };
        match (write, outcome) {
            (Write::Hold, Outcome::Done) => {
                let carried = self.held.and_then(|held| held.carried);
                self.held = Some(Held { renewed: asked, carried, is_cut_off: false });
            }
            (Write::Hand(_) | Write::Leave, _) => self.held = None,
            (Write::Hold | Write::Want, Outcome::Silent) => {
                if let Some(held) = &mut self.held {
                    held.is_cut_off = true;
                }
            }
            (Write::Hold | Write::Want, _) => {}
        }
    }

    /// Takes whether somebody on the link has the address.
    pub(super) fn hear(&mut self, is_answered: bool, now: Moment) {
        self.asked = Some((now, is_answered));
        if is_answered {
            self.held = None;
            self.not_before = now + PAUSE;
        }
    }

    /// What is to become of the address on our interface.
    pub(super) fn carry(&self, now: Moment) -> Carry {
        let Some(held) = self.held.filter(|_| self.standing.is_some()) else { return Carry::Not };
        let until = held.carried.map(|carried| carried.until).filter(|until| *until > now);
        let by_lease = (held.renewed + DURATION).saturating_sub(now + LATE);
        let seconds = match until {
            // Who held it before goes by the link while cut off, and may have found it free when we did not carry it yet.
            None if !self.is_free(now) => 0,
            Some(_) if held.is_cut_off && self.is_free(now) => LIFETIME_SECONDS,
            Some(_) | None => whole_seconds(by_lease),
        };
        let is_longer = until.is_none_or(|until| now + of_seconds(seconds) > until);
        match until {
            _ if seconds > 0 && is_longer => Carry::For(seconds),
            Some(_) => Carry::AsItIs,
            None => Carry::Not,
        }
    }

    /// Takes that the kernel keeps the address for so long from now on, or none of it.
    pub(super) fn carried(&mut self, seconds: u32, now: Moment) {
        let Some(held) = &mut self.held else { return };
        let until = now + of_seconds(seconds);
        let before = held.carried.filter(|carried| carried.until > now);
        let carried = before.unwrap_or(Carried { since: now, until, told: 0 });
        held.carried = (seconds > 0).then_some(Carried { until, ..carried });
    }

    /// Takes that the link was told that the address is here.
    pub(super) fn told(&mut self) {
        if let Some(carried) = self.held.as_mut().and_then(|held| held.carried.as_mut()) {
            carried.told += 1;
        }
    }

    /// What to do next.
    pub(super) fn next(&mut self, now: Moment) -> Step {
        match (self.standing.clone(), self.held) {
            (Some(standing), Some(held)) => self.keep(&standing, held, now),
            (Some(standing), None) if self.is_known => {
                let step = self.come_by(&standing, now);
                step.unwrap_or_else(|| self.look_on(&standing, now))
            }
            // Where it is no longer served here.
            (None, Some(_)) => Step::Write(Write::Leave),
            (Some(_) | None, None) => Step::Wait(NEVER),
        }
    }

    /// As long as it is ours.
    fn keep(&self, standing: &Standing, held: Held, now: Moment) -> Step {
        let carried = held.carried.filter(|carried| carried.until > now);
        let tell_at = carried
            .map_or(NEVER, |it| TOLD_AFTER.get(it.told).map_or(NEVER, |after| it.since + *after));
        if tell_at <= now {
            return Step::Tell;
        }
        let wanted_by = self.said.as_ref().and_then(|said| said.wanted_by.as_deref());
        if let Some(other) = wanted_by.filter(|other| standing.is_worth(&self.me, other)) {
            return Step::Write(Write::Hand(other.to_owned()));
        }
        if (held.is_cut_off || carried.is_none()) && !self.has_asked(now) {
            return Step::Ask;
        }
        if self.not_before <= now {
            return Step::Write(Write::Hold);
        }
        Step::Wait(self.not_before.min(tell_at))
    }

    /// Where nobody has it, or whoever had it has let it run out.
    fn come_by(&self, standing: &Standing, now: Moment) -> Option<Step> {
        let holder = self.said.as_ref().and_then(|said| said.holder.as_deref());
        let holder = holder.filter(|holder| *holder != self.me);
        let (since, turn) = match holder {
            Some(_) => (self.renewed + DURATION, TURN),
            // It is ours already, be it that another has given it to us.
            None if self.is_ours() => (self.changed, TURN),
            // It has been given back, or there never was one. Everybody asks the link before turns begin.
            None => (self.changed.max(self.stood) + ASK_AHEAD, FIRST_TURN),
        };
        let turns = if self.is_ours() { 0 } else { standing.rank(&self.me, holder) };
        let turns = u32::try_from(turns).unwrap_or(MOST_TURNS).min(MOST_TURNS);
        let due = since + turn * turns;
        let ask_at = due.saturating_sub(ASK_AHEAD).max(self.not_before);
        if holder.is_some() && since > now + ASK_AHEAD {
            return None;
        }
        Some(if ask_at > now {
            Step::Wait(ask_at)
        } else if !self.has_asked(now) {
            Step::Ask
        } else if due <= now {
            Step::Write(Write::Hold)
        } else {
            Step::Wait(due)
        })
    }

    /// While another has it: it may be worth moving.
    fn look_on(&mut self, standing: &Standing, now: Moment) -> Step {
        let run_out = (self.renewed + DURATION).saturating_sub(ASK_AHEAD).max(self.not_before);
        let holder = self.said.as_ref().and_then(|said| said.holder.as_deref()).unwrap_or_default();
        let is_best = standing.rank(&self.me, None) == 0;
        if !is_best || !standing.is_worth(holder, &self.me) {
            self.better = None;
            return Step::Wait(run_out);
        }
        let since = *self.better.get_or_insert(now);
        let due = (since + SETTLED).max(self.changed + KEPT).max(self.wanted).max(self.not_before);
        if due > now {
            return Step::Wait(due.min(run_out));
        }
        self.wanted = now + SETTLED;
        Step::Write(Write::Want)
    }

    fn is_ours(&self) -> bool {
        let holder = self.said.as_ref().and_then(|said| said.holder.as_ref());
        holder == Some(&self.me)
    }

    /// Whether what the link said still holds.
    fn has_asked(&self, now: Moment) -> bool {
        self.asked.is_some_and(|(at, _)| now <= at + FRESH)
    }

    /// Whether the link has just said that nobody else has the address.
    fn is_free(&self, now: Moment) -> bool {
        self.asked.is_some_and(|(at, is_answered)| now <= at + FRESH && !is_answered)
    }
}

fn whole_seconds(left: Duration) -> u32 {
    u32::try_from(left.as_secs()).unwrap_or(u32::MAX).min(LIFETIME_SECONDS)
}

const fn of_seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds as u64)
}

#[cfg(test)]
mod tests;
