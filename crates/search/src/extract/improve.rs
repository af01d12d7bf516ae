//! Making a chosen program cheaper by exact local moves.

use super::{Choice, Problem, Total};

/// Rounds over all classes; most programs need one or two.
const ROUNDS: usize = 4;

/// So many classes are tried as new common parts, per round.
const ADOPTIONS: usize = 4096;

/// A common part is used through at most so many classes: a slice of a layer that is itself a slice of a wider one.
const STEPS_UP: usize = 3;

/// So many classes are looked at on the way up from a common part.
const LOOKED_UP: usize = 512;

/// How several classes of a program come to use one that is not in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Adoption {
    /// Classes outside of the program on the way, each with the node by which it uses the one below.
    through: Vec<(u32, u32)>,
    /// Classes of the program, each with the node by which it uses the new one.
    moves: Vec<(u32, u32)>,
}

impl Adoption {
    /// Another node for one class of the program.
    pub(super) fn of_one(class: u32, candidate: u32) -> Adoption {
        Adoption { through: Vec::new(), moves: vec![(class, candidate)] }
    }
}

/// Tries, until nothing helps: another node for one class (what is then no longer needed is subtracted, what is newly
/// needed is added, what is shared is neither); and one node that several classes could use, all of them at once. A
/// choice that does not check comes back as it is.
pub(super) fn improve(p: &Problem, choice: Choice) -> Choice {
    let Some(mut state) = State::new(p, &choice) else { return choice };
    for _ in 0..ROUNDS {
        let single = state.single_moves();
        if !(state.adoptions() || single) {
            break;
        }
    }
    match (state.choice.total(p), choice.total(p)) {
        (Ok(new), Ok(old)) if new < old => state.choice,
        _ => choice,
    }
}

/// A program under change.
pub(super) struct State<'a> {
    p: &'a Problem,
    choice: Choice,
    users: Vec<Vec<(u32, u32)>>,
    /// By class: uses by chosen nodes of the program, and one for the root. Classes with none are not in the program.
    uses: Vec<u32>,
    /// By class of the program: its place in an order of children before parents.
    place: Vec<u32>,
    order: Vec<u32>,
}

/// The place of classes that came into the program after it was last ordered.
const UNORDERED: u32 = u32::MAX;

impl<'a> State<'a> {
    /// The program of a choice; `None` where it is none.
    pub(super) fn new(p: &'a Problem, choice: &Choice) -> Option<State<'a>> {
        let mut state = State {
            p,
            choice: choice.clone(),
            users: p.users(),
            uses: vec![0; p.classes()],
            place: vec![UNORDERED; p.classes()],
            order: Vec::new(),
        };
        state.reorder().then_some(())?;
        state.uses[p.root() as usize] = 1;
        for at in 0..state.order.len() {
            let class = state.order[at];
            let chosen = state.chosen(class)?;
            for c in distinct(p.needs(chosen)) {
                state.uses[c as usize] += 1;
            }
        }
        Some(state)
    }

    /// The choice as it is now; of classes outside of the program, what was chosen last.
    pub(super) fn choice(&self) -> &Choice {
        &self.choice
    }

    /// The classes of the program, children before parents.
    pub(super) fn order(&self) -> &[u32] {
        &self.order
    }

    pub(super) fn is_chosen(&self, class: u32, candidate: u32) -> bool {
        self.chosen(class) == Some(candidate)
    }

    /// Whether classes of any program could use the class together.
    pub(super) fn could_share(&self, class: u32) -> bool {
        self.chosen(class).is_some() && self.users[class as usize].len() > 1
    }

    /// How all classes of the program that can come to use a class outside of it; `None` where they are not several.
    pub(super) fn sharers(&self, class: u32) -> Option<Adoption> {
        if self.uses[class as usize] > 0 {
            return None;
        }
        Some(self.users_in_program(class)).filter(|a| a.moves.len() > 1)
    }

    fn chosen(&self, class: u32) -> Option<u32> {
        self.choice.get(class)
    }

    fn own(&self, candidate: u32) -> Total {
        self.p.candidate(candidate).total
    }

    /// Orders the program again; gives whether it has no cycle.
    fn reorder(&mut self) -> bool {
        let Ok(order) = self.choice.order(self.p) else { return false };
        self.place.fill(UNORDERED);
        order.iter().enumerate().for_each(|(at, &c)| self.place[c as usize] = at as u32);
        self.order = order;
        true
    }

    /// Takes a node's needs out of the program, and what only they needed. Gives the price of that.
    fn release(&mut self, candidate: u32) -> Total {
        let mut freed = Total::default();
        let mut stack = vec![candidate];
        while let Some(candidate) = stack.pop() {
            for c in distinct(self.p.needs(candidate)) {
                self.uses[c as usize] -= 1;
                if self.uses[c as usize] == 0 {
                    let chosen = self.chosen(c).expect("what is in the program is chosen");
                    freed = freed.plus(self.own(chosen));
                    stack.push(chosen);
                }
            }
        }
        freed
    }

    /// Puts a node's needs into the program, and what they need. Gives the price of that; `None` (and no change) where
    /// something can't be had.
    fn acquire(&mut self, candidate: u32) -> Option<Total> {
        let mut added = Total::default();
        let mut stack = vec![candidate];
        let mut done = Vec::new();
        while let Some(candidate) = stack.pop() {
            for c in distinct(self.p.needs(candidate)) {
                self.uses[c as usize] += 1;
                done.push(c);
                if self.uses[c as usize] == 1 {
                    let Some(chosen) = self.chosen(c) else {
                        done.iter().for_each(|&c| self.uses[c as usize] -= 1);
                        return None;
                    };
                    added = added.plus(self.own(chosen));
                    stack.push(chosen);
                }
            }
        }
        Some(added)
    }

    /// Whether a node's needs lead to a class by what is chosen now.
    pub(super) fn leads_to(&self, candidate: u32, class: u32) -> bool {
        self.leads_to_since(candidate, class, UNORDERED)
    }

    /// The same where classes have been given other nodes since the program was ordered: the first of them stands at `changed`.
    fn leads_to_since(&self, candidate: u32, class: u32, changed: u32) -> bool {
        let limit = self.place[class as usize].min(changed);
        let mut seen = hashbrown::HashSet::new();
        let mut stack = self.p.needs(candidate).to_vec();
        while let Some(c) = stack.pop() {
            if c == class {
                return true;
            }
            // What stands before the class in the order does not need it, nor anything that has changed.
            if self.place[c as usize] < limit || !seen.insert(c) {
                continue;
            }
            if let Some(chosen) = self.chosen(c) {
                stack.extend(self.p.needs(chosen));
            }
        }
        false
    }

    /// Chooses another node for a class of the program. Gives what is added and what is freed, or `None` (and no change)
    /// where it can't be.
    fn switch(&mut self, class: u32, candidate: u32) -> Option<(Total, Total)> {
        let old = self.chosen(class)?;
        // In this order what both need stays in the program, and is not walked.
        let added = self.acquire(candidate)?.plus(self.own(candidate));
        let freed = self.release(old).plus(self.own(old));
        self.choice.set(class, candidate);
        Some((added, freed))
    }

    fn single_moves(&mut self) -> bool {
        let mut helped = false;
        for class in self.order.clone() {
            for candidate in self.p.of_class(class) {
                let Some(old) = self.chosen(class) else { continue };
                if self.uses[class as usize] == 0 || old == candidate || self.leads_to(candidate, class) {
                    continue;
                }
                let Some((added, freed)) = self.switch(class, candidate) else { continue };
                if added < freed && self.reorder() {
                    helped = true;
                } else {
                    self.switch(class, old).expect("it was there before");
                }
            }
        }
        helped
    }

    /// Lets several classes of the program use one class outside of it, where that pays for all of them together.
    fn adoptions(&mut self) -> bool {
        let mut helped = false;
        let mut tried = 0;
        for shared in 0..self.p.classes() as u32 {
            if self.uses[shared as usize] > 0 || self.chosen(shared).is_none() || tried == ADOPTIONS {
                continue;
            }
            let adoption = self.users_in_program(shared);
            if adoption.moves.len() < 2 {
                continue;
            }
            tried += 1;
            helped |= self.try_moves(&adoption, |delta| delta < 0).is_some();
        }
        helped
    }

    /// The classes of the program that have a node that uses the class, at once or through classes between (a field of a tuple,
    /// a slice, a layer that is merged itself), each with its first such node.
    fn users_in_program(&self, shared: u32) -> Adoption {
        let mut found = Adoption::default();
        let mut level = vec![shared];
        let mut seen = vec![shared];
        for step in 0..STEPS_UP {
            let mut above = Vec::new();
            for below in level {
                for &(candidate, class) in &self.users[below as usize] {
                    if seen.contains(&class) || seen.len() == LOOKED_UP {
                        continue;
                    }
                    if self.uses[class as usize] > 0 {
                        seen.push(class);
                        found.moves.push((class, candidate));
                    } else if step + 1 < STEPS_UP && self.chosen(class).is_some() {
                        seen.push(class);
                        found.through.push((class, candidate));
                        above.push(class);
                    }
                }
            }
            level = above;
        }
        found
    }

    /// Chooses other nodes for several classes at once, where what that adds to the price (in units, then nodes, in the lowest
    /// bits) is accepted and no cycle comes of it. Gives what it added in units; `None`, and no change, where it is not done.
    pub(super) fn try_moves(&mut self, adoption: &Adoption, accept: impl Fn(i128) -> bool) -> Option<i128> {
        let (mut added, mut freed) = (Total::default(), Total::default());
        // What is outside of the program takes part in no use and no order: what is chosen there can be changed and changed back,
        // as long as no cycle comes of it.
        let mut outside = Vec::new();
        for &(class, candidate) in &adoption.through {
            match self.chosen(class) {
                Some(old) if old != candidate && !self.leads_to(candidate, class) => {
                    self.choice.set(class, candidate);
                    outside.push((class, old));
                }
                _ => {}
            }
        }
        let mut undo = Vec::new();
        let mut changed = UNORDERED;
        for &(class, candidate) in &adoption.moves {
            // An earlier move may have taken the class out of the program, or made this one close a cycle: uses that go round
            // in a cycle would never come to an end.
            if self.uses[class as usize] == 0 || self.leads_to_since(candidate, class, changed) {
                continue;
            }
            let old = self.chosen(class).expect("what is in the program is chosen");
            if let Some((a, f)) = self.switch(class, candidate) {
                (added, freed) = (added.plus(a), freed.plus(f));
                undo.push((class, old));
                changed = changed.min(self.place[class as usize]);
            }
        }
        let delta = added.units as i128 - freed.units as i128;
        // Of programs at one price, the one with fewer nodes.
        let ranked = if delta == 0 { added.nodes as i128 - freed.nodes as i128 } else { delta };
        if !undo.is_empty() && accept(ranked) && self.reorder() {
            return Some(delta);
        }
        for (class, old) in undo.into_iter().rev() {
            self.switch(class, old).expect("it was there before");
        }
        outside.into_iter().rev().for_each(|(class, old)| self.choice.set(class, old));
        None
    }
}

/// A node's needs, each once.
fn distinct(needs: &[u32]) -> impl Iterator<Item = u32> + '_ {
    needs.iter().enumerate().filter(|(at, c)| !needs[..*at].contains(c)).map(|(_, &c)| c)
}
