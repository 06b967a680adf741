//! Model of an endpoint: some workers with a backlog, or processors that all requests share.

use std::time::Duration;

use balance::Time;

use super::ServiceDiscipline;

/// Request at an endpoint.
pub(crate) struct RunningRequest {
    pub(crate) arrived: Time,
    pub(crate) started: Time,
    pub(crate) level: u32,
    /// Remaining work in seconds.
    pub(crate) work_left: f64,
    /// Balancer that has sent it.
    pub(crate) owner: usize,
}

pub(crate) struct ModelServer {
    pub(crate) workers: usize,
    pub(crate) slower: f64,
    discipline: ServiceDiscipline,
    jobs: Vec<RunningRequest>,
    as_of: Time,
    generation: u64,
}

/// Next finish of a request, if nothing happens at the endpoint before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextFinish {
    pub(crate) at: Time,
    pub(crate) generation: u64,
}

impl ModelServer {
    pub(crate) fn new(workers: usize, discipline: ServiceDiscipline) -> Self {
        let jobs = Vec::new();
        Self { workers, slower: 1.0, discipline, jobs, as_of: Time::ZERO, generation: 0 }
    }

    /// Begins a request.
    pub(crate) fn begin(&mut self, request: RunningRequest, now: Time) -> Option<NextFinish> {
        self.advance(now);
        self.jobs.push(request);
        self.next_finish(now)
    }

    /// Returns the request that has finished; `None` if something has happened since.
    pub(crate) fn finish(&mut self, generation: u64, now: Time) -> Option<RunningRequest> {
        if self.generation != generation {
            return None;
        }
        self.advance(now);
        let served = (0..self.jobs.len()).filter(|&job| self.speed(job) > 0.0);
        let left = |&job: &usize| self.jobs[job].work_left;
        let done = served.min_by(|one, other| left(one).total_cmp(&left(other)));
        Some(self.jobs.remove(done.expect("a request has finished")))
    }

    /// Changes the workers or the speed.
    pub(crate) fn change(
        &mut self,
        workers: Option<usize>,
        slower: f64,
        now: Time,
    ) -> Option<NextFinish> {
        self.advance(now);
        self.workers = workers.unwrap_or(self.workers);
        self.slower = slower;
        self.next_finish(now)
    }

    /// Returns the next finish, which makes earlier results void.
    pub(crate) fn next_finish(&mut self, now: Time) -> Option<NextFinish> {
        self.generation += 1;
        let left = |job: usize| self.jobs[job].work_left.max(0.0) / self.speed(job);
        let next = (0..self.jobs.len()).map(left).filter(|left| left.is_finite());
        let at = now + Duration::from_secs_f64(next.reduce(f64::min)?);
        Some(NextFinish { at, generation: self.generation })
    }

    /// Returns the share of a worker that a request has.
    fn speed(&self, job: usize) -> f64 {
        match self.discipline {
            ServiceDiscipline::Workers => f64::from(u8::from(job < self.workers)),
            ServiceDiscipline::Processors => {
                (self.workers as f64 / self.jobs.len() as f64).min(1.0)
            }
        }
    }

    /// Subtracts the work done since the last call.
    fn advance(&mut self, now: Time) {
        let passed = now.saturating_since(self.as_of).as_secs_f64();
        for job in 0..self.jobs.len() {
            let done = passed * self.speed(job);
            self.jobs[job].work_left -= done;
        }
        self.as_of = now;
    }
}
