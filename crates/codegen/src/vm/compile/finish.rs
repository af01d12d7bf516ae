//! From instructions over as many registers as there are results to a function: where registers are emptied, and which can
//! be one.
//!
//! Code jumps forward only, loops being calls: one walk from its end finds what is needed later, and a register's life lies
//! between the first and the last instruction that name it.

use hashbrown::HashMap;

use super::super::program::{Function, Instr, Label, Operand, Reg};
use crate::ir::{Name, Span};

/// A function whose registers are still one per result, and whose jumps go to labels by number.
pub(super) struct Draft {
    pub(super) name: Name,
    pub(super) params: u32,
    pub(super) registers: u32,
    pub(super) code: Vec<Instr>,
    pub(super) spans: Vec<(Label, Span)>,
    /// By number: the place.
    pub(super) labels: Vec<Label>,
}

/// A set of registers that is fast to list.
struct Live {
    listed: Vec<u32>,
    /// By register: its place in the list, one up.
    place: Vec<u32>,
}

impl Live {
    fn new(registers: u32) -> Live {
        Live { listed: Vec::new(), place: vec![0; registers as usize] }
    }

    fn contains(&self, r: u32) -> bool {
        self.place[r as usize] != 0
    }

    fn insert(&mut self, r: u32) {
        if !self.contains(r) {
            self.listed.push(r);
            self.place[r as usize] = self.listed.len() as u32;
        }
    }

    fn remove(&mut self, r: u32) {
        let at = std::mem::take(&mut self.place[r as usize]);
        if at != 0 {
            self.listed.swap_remove(at as usize - 1);
            if let Some(&moved) = self.listed.get(at as usize - 1) {
                self.place[moved as usize] = at;
            }
        }
    }

    fn clear(&mut self) {
        for r in self.listed.drain(..) {
            self.place[r as usize] = 0;
        }
    }
}

/// The function of a draft.
pub(super) fn finish(mut d: Draft) -> Function {
    for instr in &mut d.code {
        instr.labels(|l| *l = d.labels[*l as usize]);
    }
    let (drops, removed) = last_uses(&mut d);
    let (code, spans) = rebuilt(d.code, d.spans, drops, &removed);
    let (code, registers) = allocated(code, d.params, d.registers);
    Function { name: d.name, params: d.params, registers, code, spans }
}

/// Marks last uses, and says which registers are to be emptied before which instruction, and which instructions do nothing
/// that is needed.
fn last_uses(d: &mut Draft) -> (HashMap<Label, Vec<u32>>, Vec<bool>) {
    let mut targets = vec![false; d.code.len() + 1];
    for instr in &mut d.code {
        instr.labels(|l| targets[*l as usize] = true);
    }
    let mut live = Live::new(d.registers);
    let mut live_at: HashMap<Label, Vec<u32>> = HashMap::new();
    let mut drops: HashMap<Label, Vec<u32>> = HashMap::new();
    let mut removed = vec![false; d.code.len()];
    for at in (0..d.code.len()).rev() {
        let instr = &mut d.code[at];
        let mut ways: Vec<Label> = Vec::new();
        instr.labels(|l| ways.push(*l));
        if !instr.falls_through() {
            live.clear();
        } else if !ways.is_empty() {
            ways.push(at as Label + 1);
            live_at.entry(at as Label + 1).or_insert_with(|| live.listed.clone());
        }
        for way in &ways {
            live_at[way].iter().for_each(|&r| live.insert(r));
        }
        for &way in ways.iter().filter(|_| ways.len() > 1) {
            let needed = &live_at[&way];
            if needed.len() < live.listed.len() {
                let needed: hashbrown::HashSet<u32> = needed.iter().copied().collect();
                let dead = live.listed.iter().copied().filter(|r| !needed.contains(r));
                drops.entry(way).or_default().extend(dead);
            }
        }
        if let Some(Reg(dst)) = instr.dst() {
            if !live.contains(dst) {
                if instr.is_pure() {
                    removed[at] = true;
                } else {
                    drops.entry(at as Label + 1).or_default().push(dst);
                }
            }
            live.remove(dst);
        }
        if !removed[at] {
            mark_reads(instr, &mut live);
        }
        if targets[at] {
            live_at.insert(at as Label, live.listed.clone());
        }
    }
    let unused: Vec<u32> = (0..d.params).filter(|&p| !live.contains(p)).collect();
    drops.entry(0).or_default().extend(unused);
    (drops, removed)
}

/// Makes the operands that are read for the last time say so.
fn mark_reads(instr: &mut Instr, live: &mut Live) {
    let mut reads: Vec<u32> = Vec::new();
    let register = |o: &Operand| match o {
        Operand::Copy(r) | Operand::Take(r) => Some(r.0),
        _ => None,
    };
    instr.visit(|o| reads.extend(register(o)), |_| {});
    let mut left = &reads[..];
    instr.visit(
        |o| {
            if let Some(r) = register(o) {
                left = &left[1..];
                *o = match live.contains(r) || left.contains(&r) {
                    true => Operand::Copy(Reg(r)),
                    false => Operand::Take(Reg(r)),
                };
            }
        },
        |_| {},
    );
    reads.iter().for_each(|&r| live.insert(r));
}

/// The code with what is emptied and without what is removed.
fn rebuilt(
    code: Vec<Instr>,
    spans: Vec<(Label, Span)>,
    mut drops: HashMap<Label, Vec<u32>>,
    removed: &[bool],
) -> (Vec<Instr>, Vec<(Label, Span)>) {
    let mut places: Vec<Label> = Vec::with_capacity(code.len() + 1);
    let mut instructions: Vec<Label> = Vec::with_capacity(code.len());
    let mut new: Vec<Instr> = Vec::with_capacity(code.len());
    for (at, instr) in code.into_iter().enumerate() {
        places.push(new.len() as Label);
        if let Some(mut dropped) = drops.remove(&(at as Label)) {
            dropped.sort_unstable();
            dropped.dedup();
            if !dropped.is_empty() {
                new.push(Instr::Drop(dropped.into_iter().map(Reg).collect()));
            }
        }
        instructions.push(new.len() as Label);
        if !removed[at] {
            new.push(instr);
        }
    }
    for instr in &mut new {
        instr.labels(|l| *l = places[*l as usize]);
    }
    let kept = spans.into_iter().filter(|(at, _)| !removed[*at as usize]);
    (new, kept.map(|(at, span)| (instructions[at as usize], span)).collect())
}

/// The code with registers used again once their lives are over, and how many it needs.
fn allocated(mut code: Vec<Instr>, params: u32, registers: u32) -> (Vec<Instr>, u32) {
    let mut last: Vec<usize> = vec![0; registers as usize];
    let named = |instr: &mut Instr, f: &mut dyn FnMut(&mut Reg, bool)| {
        if let Instr::Drop(regs) = instr {
            regs.iter_mut().for_each(|r| f(r, false));
        }
        let written = {
            let mut written = None;
            instr.visit(
                |o| {
                    if let Operand::Copy(r) | Operand::Take(r) = o {
                        f(r, false);
                    }
                },
                |r| written = Some(*r),
            );
            written
        };
        if let Some(mut w) = written {
            f(&mut w, true);
            instr.visit(|_| {}, |r| *r = w);
        }
    };
    for (at, instr) in code.iter_mut().enumerate() {
        named(instr, &mut |r, _| last[r.0 as usize] = at);
    }
    let mut given: Vec<Option<u32>> = vec![None; registers as usize];
    (0..params).for_each(|p| given[p as usize] = Some(p));
    let (mut free, mut count): (Vec<u32>, u32) = (Vec::new(), params);
    for (at, instr) in code.iter_mut().enumerate() {
        named(instr, &mut |r, written| {
            let own = r.0 as usize;
            let place = *given[own].get_or_insert_with(|| {
                free.pop().unwrap_or_else(|| {
                    count += 1;
                    count - 1
                })
            });
            r.0 = place;
            // An instruction reads before it writes: what it reads for the last time may hold its result. The same
            // register may be read twice by one instruction; only the first of these frees it.
            if last[own] == at && !written {
                last[own] = usize::MAX;
                free.push(place);
            }
        });
    }
    (code, count)
}
