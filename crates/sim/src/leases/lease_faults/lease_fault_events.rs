//! Faults of replicas and their network, and changes of members and endpoints.

use super::*;

impl LeaseFaultSimulation {
    /// Returns a process that has just started and knows members and endpoints.
    pub(super) fn new_process(&mut self, number: usize) -> ReplicaProcess {
        self.incarnations += 1;
        let identity = ReplicaIdentity { member: member(number), incarnation: self.incarnations };
        let mut replica = LeaseReplica::new(identity, self.plan.policy, &self.plan.pools);
        let clock = ReplicaClock::draw(&mut self.dice, self.plan.drift_ppm);
        let members = self.members.iter().map(|&number| member(number));
        replica.table.update_members(members, clock.at(self.now));
        replica.configure(&self.caps());
        ReplicaProcess {
            replica,
            clock,
            incarnation: self.incarnations,
            is_alive: true,
            is_paused: false,
            deferred: Vec::new(),
            next_poll: Time::MAX,
            informed_at: self.now,
        }
    }

    fn caps(&self) -> Vec<u32> {
        self.endpoints.iter().map(EndpointAudit::cap).collect()
    }

    pub(super) fn fault(&mut self) {
        let Some(interval) = self.plan.fault_interval.filter(|_| self.has_faults) else { return };
        let next = self.dice.exponential(interval);
        self.after(next, LeaseEvent::Fault);
        self.counts.faults += 1;
        let replica = self.dice.below(self.processes.len());
        let kind = self.dice.below(9);
        self.trace(format_args!("fault {kind} at replica {replica}"));
        match kind {
            0 => self.crash(replica),
            1 => self.pause(replica),
            2 => self.cut(replica, true),
            3 => self.cut(replica, false),
            4 => self.change_caps(),
            5 => self.join(),
            6 => self.leave(replica),
            7 => self.replay(),
            _ => self.network = NetworkQuality::draw(&mut self.dice),
        }
    }

    /// Kills a process. The endpoints go on with its requests. It starts again in its place, or is
    /// taken off the list.
    fn crash(&mut self, number: usize) {
        self.kill(number);
        if self.members.contains(&number) && self.dice.percent(70) {
            let pause = Duration::from_millis(u64::from(self.dice.between(1, 2_500)));
            self.after(pause, LeaseEvent::Start(number));
        } else {
            self.remove_member(number);
        }
    }

    fn kill(&mut self, number: usize) {
        let process = &mut self.processes[number];
        if !process.is_alive {
            return;
        }
        self.trace(format_args!("replica {number} is killed"));
        let process = &mut self.processes[number];
        process.is_alive = false;
        process.is_paused = false;
        let mut in_flight: Vec<u32> =
            (0..self.endpoints.len()).map(|endpoint| process.replica.in_flight(endpoint)).collect();
        // The endpoints have finished with these.
        for event in process.deferred.drain(..) {
            if let LeaseEvent::Finish { endpoint, incarnation, .. } = event
                && incarnation == process.incarnation
            {
                in_flight[endpoint] -= 1;
            }
        }
        for (endpoint, in_flight) in self.endpoints.iter_mut().zip(in_flight) {
            endpoint.of_dead += in_flight;
        }
    }

    pub(super) fn start(&mut self, number: usize) {
        if self.processes[number].is_alive || !self.members.contains(&number) {
            return;
        }
        self.processes[number] = self.new_process(number);
        self.step(number);
    }

    fn pause(&mut self, number: usize) {
        if self.processes[number].is_alive && !self.processes[number].is_paused {
            self.processes[number].is_paused = true;
            let pause = Duration::from_millis(u64::from(self.dice.between(1, 4_000)));
            self.after(pause, LeaseEvent::Resume(number));
        }
    }

    /// Lets a paused process go on. It learns first that members have changed, as it does when it
    /// asks for the list again after a pause.
    pub(super) fn resume(&mut self, number: usize) {
        let process = &mut self.processes[number];
        if !process.is_paused {
            return;
        }
        process.is_paused = false;
        let mut others = Vec::new();
        for event in std::mem::take(&mut process.deferred) {
            if !self.learn(&event) {
                others.push(event);
            }
        }
        self.poll(number);
        for event in others {
            // The endpoint's account has the end of the request already.
            if let LeaseEvent::Finish { replica, incarnation, endpoint } = event {
                if self.is_running(replica, incarnation) {
                    self.processes[replica].replica.finish(endpoint);
                }
            } else {
                self.handle(event);
            }
        }
        self.step(number);
    }

    /// Cuts a replica off from another, or from all.
    fn cut(&mut self, from: usize, both_ways: bool) {
        let lasts = Duration::from_millis(u64::from(self.dice.between(50, 4_000)));
        let only = self.dice.percent(50).then(|| self.dice.below(self.processes.len()));
        for to in 0..self.processes.len() {
            if to == from || only.is_some_and(|only| only != to) {
                continue;
            }
            self.cuts[from][to] += 1;
            self.after(lasts, LeaseEvent::Connect(from, to));
            if both_ways {
                self.cuts[to][from] += 1;
                self.after(lasts, LeaseEvent::Connect(to, from));
            }
        }
    }

    fn change_caps(&mut self) {
        let endpoint = self.dice.below(self.endpoints.len());
        let cap = if self.dice.percent(30) { 0 } else { self.dice.between(1, 6) };
        self.trace(format_args!("endpoint {endpoint} has the cap {cap}"));
        self.endpoints[endpoint].set_cap(cap, self.now);
        self.announce_caps();
    }

    pub(super) fn announce_caps(&mut self) {
        let caps = self.caps();
        for replica in 0..self.processes.len() {
            let at = self.learns_at(replica);
            let incarnation = self.processes[replica].incarnation;
            let caps = caps.clone();
            self.events.schedule(at, LeaseEvent::LearnCaps { replica, incarnation, caps });
        }
    }

    pub(super) fn join(&mut self) {
        let number = self.processes.len();
        if number == MAX_REPLICAS || self.members.len() > 4 {
            return;
        }
        self.members.push(number);
        let process = self.new_process(number);
        self.processes.push(process);
        self.step(number);
        self.announce_members();
    }

    /// Takes a replica off the list. It goes on without slots of its own.
    fn leave(&mut self, number: usize) {
        self.remove_member(number);
    }

    fn remove_member(&mut self, number: usize) {
        // One that is left alone, and has just started, would not wait for those that have left.
        if self.members.len() > 2 && self.members.contains(&number) {
            self.members.retain(|&member| member != number);
            self.announce_members();
        }
    }

    pub(super) fn announce_members(&mut self) {
        for replica in 0..self.processes.len() {
            let at = self.learns_at(replica);
            let incarnation = self.processes[replica].incarnation;
            let members = self.members.clone();
            self.events.schedule(at, LeaseEvent::LearnMembers { replica, incarnation, members });
        }
    }

    /// Draws when a replica learns of a change now. Later changes do not overtake earlier ones.
    fn learns_at(&mut self, replica: usize) -> Time {
        let late = MAX_LAG * self.dice.between(0, 100) / 100;
        let process = &mut self.processes[replica];
        process.informed_at = process.informed_at.max(self.now + late);
        process.informed_at
    }

    /// Tells a process of a change of members or endpoints. Returns false if it is no such event.
    pub(super) fn learn(&mut self, event: &LeaseEvent) -> bool {
        let (LeaseEvent::LearnMembers { replica, incarnation, .. }
        | LeaseEvent::LearnCaps { replica, incarnation, .. }) = *event
        else {
            return false;
        };
        if !self.is_running(replica, incarnation) {
            return true;
        }
        let process = &mut self.processes[replica];
        let now = process.clock.at(self.now);
        match event {
            LeaseEvent::LearnCaps { caps, .. } => process.replica.configure(caps),
            LeaseEvent::LearnMembers { members, .. } => {
                let addresses = members.iter().map(|&number| member(number));
                process.replica.table.update_members(addresses, now);
                if !members.contains(&replica) {
                    // It is going away: clients retry elsewhere.
                    process.replica.clear_queues();
                }
            }
            _ => {}
        }
        true
    }

    /// Delivers a recorded message again, as it was or with impossible numbers.
    fn replay(&mut self) {
        if self.recorded.is_empty() {
            return;
        }
        let mut message = self.recorded[self.dice.below(self.recorded.len())].clone();
        match self.dice.below(5) {
            0 => message.version += 1,
            1 => message.to.incarnation += 1_000,
            2 => {
                message.echo = Time::MAX;
                message.sent = Time::MAX;
            }
            3 => {
                message.sent = Time::MAX;
                message.lent.iter_mut().for_each(|entry| entry.granted = u64::MAX);
                message.returned.iter_mut().for_each(|entry| entry.returned = u64::MAX);
                message.lending_epoch = 0;
            }
            _ => {}
        }
        self.after(Duration::ZERO, LeaseEvent::Deliver(message));
    }

    /// Ends all faults: dead members start again, paused ones go on, and everything arrives.
    pub(super) fn end_faults(&mut self) {
        self.has_faults = false;
        self.network = NetworkQuality::GOOD;
        for number in 0..self.processes.len() {
            self.resume(number);
            self.start(number);
            if !self.members.contains(&number) {
                self.kill(number);
            }
        }
        self.cuts.iter_mut().flatten().for_each(|cuts| *cuts = 0);
        self.events.retain(|event| !matches!(event, LeaseEvent::Connect(..)));
        for (endpoint, &cap) in self.plan.caps.iter().enumerate() {
            if self.endpoints[endpoint].cap() == 0 {
                self.endpoints[endpoint].set_cap(cap, self.now);
            }
        }
        self.announce_members();
        self.announce_caps();
    }
}
