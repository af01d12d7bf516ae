//! Calls whose extents change from one run to the next: each has a family of kernels, which is compiled once.

use hashbrown::HashSet;

use super::{Decisions, changing, is_view, schedule_sized};
use crate::{
    loops::{AxisId, Family, Kernel, Member, Stages, check},
    machine::Core,
};

/// The calls of a program, in order, as they were met at some sizes.
#[derive(Debug)]
pub struct Sites {
    unit: Core,
    sites: Vec<Site>,
    next: usize,
    /// Calls that no family has served, with the number of the call.
    pub missed: usize,
}

#[derive(Debug)]
enum Site {
    /// Its result is the argument of that number, byte for byte.
    View(usize),
    /// One kernel for all sizes.
    Family(Box<Sized>),
    /// The same at all sizes.
    Same(Box<Stages>),
    /// A kernel for each size.
    Alone,
}

#[derive(Debug)]
struct Sized {
    changing: HashSet<AxisId>,
    decisions: Decisions,
    family: Family,
    kernel: Kernel,
}

/// What a call is made of, whatever its extents.
#[derive(Debug)]
pub(super) enum Met<'a> {
    /// Nothing: the result is the argument of that number.
    View(usize),
    /// The family's kernel, and its parameters. The kernel has no name.
    Kernel(&'a Kernel, Member),
    /// A kernel for these extents alone.
    Alone,
}

impl Sites {
    /// For calls that compute these groups: first those of the size that decisions are made for, then the same calls' at other sizes.
    pub fn new(unit: Core, sizes: &[Vec<Stages>]) -> Sites {
        let count = sizes.first().map_or(0, Vec::len);
        let others: Vec<&Vec<Stages>> = sizes.iter().filter(|s| s.len() == count).collect();
        let site = |i: usize| Site::new(unit, &others.iter().map(|s| &s[i]).collect::<Vec<_>>());
        Sites { unit, sites: (0..count).map(site).collect(), next: 0, missed: 0 }
    }

    /// How many calls have one kernel for all sizes, and how many one for each.
    pub fn counts(&self) -> (usize, usize) {
        let families = self.sites.iter().filter(|s| matches!(s, Site::Family(_))).count();
        (families, self.sites.iter().filter(|s| matches!(s, Site::Alone)).count())
    }

    /// The first call is what is met next.
    pub(super) fn begin(&mut self) {
        (self.next, self.missed) = (0, 0);
    }

    /// The next call, which computes that group.
    pub(super) fn meet(&mut self, group: &Stages) -> Met<'_> {
        let at = self.next;
        self.next += 1;
        let met = match self.sites.get_mut(at) {
            Some(Site::View(arg)) if is_view(group) == Some(*arg) => return Met::View(*arg),
            Some(Site::Same(same)) if **same == *group => return Met::Alone,
            Some(Site::Family(sized)) => sized.meet(group, self.unit),
            _ => None,
        };
        match met {
            Some((kernel, member)) => Met::Kernel(kernel, member),
            None => {
                self.missed += 1;
                Met::Alone
            }
        }
    }
}

impl Site {
    fn new(unit: Core, groups: &[&Stages]) -> Site {
        let views: Vec<Option<usize>> = groups.iter().map(|g| is_view(g)).collect();
        if let Some(Some(arg)) = views.first().filter(|first| views.iter().all(|v| v == *first)) {
            return Site::View(*arg);
        }
        if let Some((first, others)) = groups.split_first()
            && others.iter().all(|g| g == first)
        {
            return match others.is_empty() {
                true => Site::Alone,
                false => Site::Same(Box::new((*first).clone())),
            };
        }
        Sized::new(unit, groups).map_or(Site::Alone, |sized| Site::Family(Box::new(sized)))
    }
}

impl Sized {
    fn new(unit: Core, groups: &[&Stages]) -> Option<Sized> {
        let first = *groups.first()?;
        let alike: Vec<&Stages> =
            groups[1..].iter().copied().filter(|g| *g != first && changing(&[first, g]).is_some()).collect();
        let all: Vec<&Stages> = [first].into_iter().chain(alike).collect();
        let changing = changing(&all)?;
        let (_, decisions) = schedule_sized("", first, unit, &changing, None)?;
        let kernels = all.iter().map(|g| Some(schedule_sized("", g, unit, &changing, Some(&decisions))?.0));
        // A size at which decisions can't be taken says nothing of others.
        let kernels: Vec<Kernel> = kernels.flatten().collect();
        // Of one size alone it is not known what changes.
        let structure = kernels.first()?.outline().structure;
        let kernels: Vec<Kernel> = kernels.into_iter().filter(|k| k.outline().structure == structure).collect();
        if kernels.len() < 2 {
            return None;
        }
        let family = Family::of(&kernels)?;
        let kernel = sound(&family)?;
        Some(Sized { changing, decisions, family, kernel })
    }

    /// The kernel for all sizes, and its parameters for that one; none where it does not serve it.
    fn meet(&mut self, group: &Stages, unit: Core) -> Option<(&Kernel, Member)> {
        let (kernel, _) = schedule_sized("", group, unit, &self.changing, Some(&self.decisions))?;
        let member = match self.family.member(&kernel) {
            Some(member) => member,
            None => {
                if !self.family.join(&kernel) {
                    return None;
                }
                self.kernel = sound(&self.family)?;
                self.family.member(&kernel)?
            }
        };
        Some((&self.kernel, member))
    }
}

/// The kernel of a family, where it satisfies the checker: what is known of its parameters may not be enough for that.
fn sound(family: &Family) -> Option<Kernel> {
    Some(family.kernel()).filter(|k| check(k).is_ok())
}
