//! Calls whose extents change from one run to the next: each has a family of kernels, which is compiled once.

use std::{borrow::Cow, sync::Arc};

use hashbrown::{HashMap, HashSet};
use rayon::prelude::*;

use super::{Decisions, Group, affine::for_each_node, changing, is_view, noted, numbers_sized, schedule_sized};
use crate::{
    loops::{
        Axis, AxisId, Body, Definition, Family, Kernel, Member, Outline, Scalar, ScalarKind, SharedBody, Stage, Stages,
        check,
    },
    machine::Core,
};

/// The calls of a program, in order, as they were met at some sizes.
#[derive(Debug)]
pub struct Sites {
    unit: Core,
    sites: Vec<Site>,
    families: Vec<Sized>,
    changes: usize,
}

#[derive(Debug)]
enum Site {
    /// Its result is the argument of that number, byte for byte.
    View(usize),
    /// The same at all sizes.
    Same(Box<Group>),
    /// One of these families serves a size, where any does.
    Changing(Vec<usize>),
}

/// Kernels of one call, and of those that are the same, at all sizes where what it does has one form.
#[derive(Debug)]
struct Sized {
    /// What it computes at one size.
    pattern: Pattern,
    changing: HashSet<AxisId>,
    decisions: Decisions,
    family: Family,
    kernel: Arc<SizedKernel>,
    /// What the call computes at the sizes that were looked at.
    looked_at: Vec<Arc<Stages>>,
    /// Statements of routines that are the same at all of them: those of what is met stand in these places, by which they are known.
    shared: Vec<Arc<SharedBody>>,
}

/// What others are [brought into the form](conformed) of.
#[derive(Debug)]
struct Pattern {
    stages: Stages,
    /// By definition: whether it holds a 0, where axes may stand still.
    holds_0: Vec<bool>,
}

impl Pattern {
    fn new(stages: &Stages) -> Pattern {
        let holds_0 = |d: &Definition| {
            let Definition::Stage(Stage { body: Body::Map(value) | Body::Reduce { value, .. }, .. }) = d else {
                return false;
            };
            let mut found = false;
            for_each_node(value, &mut |n| found |= n.as_int() == Some(0));
            found
        };
        Pattern { stages: stages.clone(), holds_0: stages.definitions.iter().map(holds_0).collect() }
    }
}

/// The kernel of a family. It has no name.
#[derive(Debug)]
pub struct SizedKernel {
    /// Loop nests, which take parameters.
    pub kernel: Kernel,
    /// Names it.
    pub digest: u64,
}

/// A call at one size.
#[derive(Clone, Debug)]
pub struct Met {
    /// What it computes.
    pub group: Group,
    /// By what.
    pub made: Made,
}

/// What a call is made of.
#[derive(Clone, Debug)]
pub enum Made {
    /// Nothing: the result is the argument of that number.
    View(usize),
    /// A family's kernel, and its parameters.
    Sized(Arc<SizedKernel>, Member),
    /// A kernel for these extents alone.
    Alone,
}

/// At so many further sizes decisions are made where those of the first can't be taken at all others.
const OTHER_DECIDERS: usize = 2;

/// So many sizes are looked at for one family.
const MOST_LOOKED_AT: usize = 12;

/// What was found out about a call without changing anything.
enum Found {
    Member(Arc<SizedKernel>, Member),
    /// Kernels that may join these families.
    Other(Vec<(usize, Kernel)>),
}

/// Calls at one size, of which it was looked up by what they are made.
pub struct LookedUp {
    met: Vec<Met>,
    found: FoundCalls,
}

/// What was found out about some calls.
struct FoundCalls {
    /// What is clear of some.
    clear: Vec<(usize, Made)>,
    unserved: Vec<usize>,
    /// The others, of each the first that is the same, and of these what was found.
    open: Vec<usize>,
    same: Vec<usize>,
    found: Vec<Option<Found>>,
}

impl Sites {
    /// For calls that compute these groups: first those of the size that decisions are made for, then the same calls' at other sizes.
    pub fn new(unit: Core, sizes: &[Vec<Group>]) -> Sites {
        let count = sizes.first().map_or(0, Vec::len);
        let sizes: Vec<&[Group]> = sizes.iter().filter(|s| s.len() == count).map(|s| &s[..]).collect();
        let mut sites = Sites { unit, sites: Vec::new(), families: Vec::new(), changes: 0 };
        let column = |i: usize| -> Vec<&Group> { sizes.iter().map(|s| &s[i]).collect() };
        sites.sites = (0..count).map(|i| Site::new(&column(i))).collect();
        let changing = (0..count).filter(|&i| matches!(sites.sites[i], Site::Changing(_)));
        sites.widen(&changing.collect::<Vec<usize>>(), &sizes);
        sites
    }

    /// Makes further families for some calls, by what all calls compute at some sizes, the first of which decisions are made for.
    pub fn widen<S: AsRef<[Group]>>(&mut self, calls: &[usize], sizes: &[S]) {
        let sizes: Vec<&[Group]> = sizes.iter().map(S::as_ref).filter(|s| s.len() == self.sites.len()).collect();
        let column = |i: usize| -> Vec<&Stages> { sizes.iter().map(|s| &*s[i].stages).collect() };
        let columns: Vec<Vec<&Stages>> = calls.iter().map(|&i| column(i)).collect();
        let same: Vec<usize> =
            (0..calls.len()).map(|i| (0..i).find(|&j| columns[j] == columns[i]).unwrap_or(i)).collect();
        let unit = self.unit;
        let made: Vec<Option<Sized>> = (0..calls.len())
            .into_par_iter()
            .with_max_len(1)
            .map(|i| {
                let looked_at = || sizes.iter().map(|s| s[calls[i]].stages.clone()).collect();
                if same[i] == i { Sized::new(unit, looked_at(), self.shared(calls[i])) } else { None }
            })
            .collect();
        let mut numbers: HashMap<usize, usize> = HashMap::new();
        for (i, sized) in made.into_iter().enumerate() {
            if let Some(sized) = sized {
                numbers.insert(i, self.families.len());
                self.families.push(sized);
                self.changes += 1;
            }
        }
        for (i, &call) in calls.iter().enumerate() {
            if let (Some(&number), Site::Changing(families)) = (numbers.get(&same[i]), &mut self.sites[call]) {
                families.push(number);
            }
        }
    }

    /// How often kernels were added, or were made to take further numbers: what was met before may then be made of others.
    pub fn changes(&self) -> usize {
        self.changes
    }

    /// How many calls have one kernel for all sizes, and how many one for each.
    pub fn counts(&self) -> (usize, usize) {
        let count = |none: bool| {
            self.sites.iter().filter(|s| matches!(s, Site::Changing(families) if families.is_empty() == none)).count()
        };
        (count(false), count(true))
    }

    /// What all calls are made of at a size where they compute these groups, and the numbers of those that no family serves.
    pub fn meet(&mut self, groups: Vec<Group>) -> (Vec<Met>, Vec<usize>) {
        let seen = self.look_up(groups);
        self.assign(seen)
    }

    /// Looks up what calls are made of at a size where they compute these groups, which may go on at many sizes at once.
    pub fn look_up(&self, groups: Vec<Group>) -> LookedUp {
        let met: Vec<Met> = groups.into_iter().map(|group| Met { group, made: Made::Alone }).collect();
        let all: Vec<usize> = (0..met.len()).collect();
        let found = self.find_calls(&met, &all);
        LookedUp { met, found }
    }

    /// What the calls are made of, and the numbers of those that no family serves. Families may take further numbers for that.
    pub fn assign(&mut self, seen: LookedUp) -> (Vec<Met>, Vec<usize>) {
        let LookedUp { mut met, found } = seen;
        let unserved = self.assign_calls(&mut met, found);
        (met, unserved)
    }

    /// The same as [`Sites::meet`] for some of the calls.
    pub fn meet_again(&mut self, met: &mut [Met], calls: &[usize]) -> Vec<usize> {
        let found = self.find_calls(met, calls);
        self.assign_calls(met, found)
    }

    fn find_calls(&self, met: &[Met], calls: &[usize]) -> FoundCalls {
        let (mut clear, mut unserved) = (Vec::new(), Vec::new());
        let mut open: Vec<(usize, &[usize])> = Vec::new();
        for &i in calls {
            let group = &met[i].group;
            match self.sites.get(i) {
                Some(Site::View(arg)) if as_view(group) == Some(*arg) => clear.push((i, Made::View(*arg))),
                Some(Site::Same(same)) if **same == *group => {}
                Some(Site::Changing(families)) => open.push((i, families)),
                _ => unserved.push(i),
            }
        }
        // Calls that are the same are looked at once.
        let same: Vec<usize> = (0..open.len())
            .map(|k| {
                let is_same = |j: &usize| open[*j].1 == open[k].1 && met[open[*j].0].group == met[open[k].0].group;
                (0..k).find(is_same).unwrap_or(k)
            })
            .collect();
        let found: Vec<Option<Found>> = (0..open.len())
            .into_par_iter()
            .with_max_len(1)
            .map(|k| (same[k] == k).then(|| self.find(open[k].1, &met[open[k].0].group.stages)))
            .collect();
        FoundCalls { clear, unserved, open: open.into_iter().map(|o| o.0).collect(), same, found }
    }

    fn assign_calls(&mut self, met: &mut [Met], calls: FoundCalls) -> Vec<usize> {
        let FoundCalls { clear, mut unserved, open, same, found } = calls;
        clear.into_iter().for_each(|(i, made)| met[i].made = made);
        for (k, found) in found.into_iter().enumerate() {
            let made = match found {
                None => met[open[same[k]]].made.clone(),
                Some(Found::Member(kernel, member)) => Made::Sized(kernel, member),
                Some(Found::Other(kernels)) => {
                    let group = &met[open[k]].group.stages;
                    let joined = kernels.into_iter().find_map(|(n, kernel)| {
                        if let Some((sized, member)) = self.families[n].looking_at(group, self.unit) {
                            self.changes += 1;
                            self.families[n] = sized;
                            return Some((self.families[n].kernel.clone(), member));
                        }
                        let before = self.families[n].kernel.clone();
                        let joined = self.families[n].join(&kernel)?;
                        self.changes += usize::from(!Arc::ptr_eq(&before, &joined.0));
                        Some(joined)
                    });
                    joined.map_or(Made::Alone, |(kernel, member)| Made::Sized(kernel, member))
                }
            };
            if matches!(made, Made::Alone) {
                unserved.push(open[k]);
            }
            met[open[k]].made = made;
        }
        unserved.sort_unstable();
        unserved
    }

    /// What the call of that number is made of where it computes this group; none where it is not clear, or no family serves it.
    pub fn made(&self, call: usize, group: &Group) -> Option<Made> {
        match self.sites.get(call)? {
            Site::View(arg) => (as_view(group) == Some(*arg)).then_some(Made::View(*arg)),
            Site::Same(same) => (**same == *group).then_some(Made::Alone),
            Site::Changing(families) => match self.find(families, &group.stages) {
                Found::Member(kernel, member) => Some(Made::Sized(kernel, member)),
                Found::Other(_) => None,
            },
        }
    }

    /// The statements of routines that the call of that number has at all sizes, as far as that is known.
    pub fn shared(&self, call: usize) -> Vec<Arc<SharedBody>> {
        let families = match self.sites.get(call) {
            Some(Site::Changing(families)) => &families[..],
            _ => &[],
        };
        let mut all: Vec<Arc<SharedBody>> = Vec::new();
        for body in families.iter().flat_map(|&n| &self.families[n].shared) {
            if !all.iter().any(|known| Arc::ptr_eq(known, body)) {
                all.push(body.clone());
            }
        }
        all
    }

    /// How many calls that compute these groups tell their families' kernels what changes without a kernel of their own being made, and for
    /// how many one has to be; none where what is found out without it is not what it says, or statements are others that should be the same.
    pub fn replays(&self, groups: &[Group]) -> Option<(usize, usize)> {
        let (mut without, mut made) = (0, 0);
        for (group, site) in groups.iter().zip(&self.sites) {
            let Site::Changing(families) = site else { continue };
            for sized in families.iter().map(|&n| &self.families[n]) {
                let mut bodies = shared_bodies(&group.stages);
                if bodies.any(|s| sized.shared.iter().any(|known| known.contradicts(s))) {
                    return None;
                }
                let group = with_shared(conformed(&group.stages, &sized.pattern), &sized.shared);
                let kernel = sized.scheduled(&group, self.unit).and_then(|k| sized.family.member(&k));
                match sized.member(&group, self.unit) {
                    Some(member) if kernel != Some(member.clone()) => return None,
                    Some(_) => without += 1,
                    None => made += usize::from(kernel.is_some()),
                }
            }
        }
        Some((without, made))
    }

    fn find(&self, families: &[usize], group: &Stages) -> Found {
        let mut others = Vec::new();
        for &n in families {
            let sized = &self.families[n];
            let group = with_shared(conformed(group, &sized.pattern), &sized.shared);
            if let Some(member) = sized.member(&group, self.unit) {
                debug_assert!(
                    sized.scheduled(&group, self.unit).and_then(|k| sized.family.member(&k)).as_ref() == Some(&member),
                    "what is found out without a kernel is what the kernel says"
                );
                return Found::Member(sized.kernel.clone(), member);
            }
            let Some(kernel) = sized.scheduled(&group, self.unit) else { continue };
            match sized.family.member(&kernel) {
                Some(member) => return Found::Member(sized.kernel.clone(), member),
                None => others.push((n, kernel)),
            }
        }
        Found::Other(others)
    }
}

impl Site {
    fn new(groups: &[&Group]) -> Site {
        let views: Vec<Option<usize>> = groups.iter().map(|g| as_view(g)).collect();
        if let Some(Some(arg)) = views.first().filter(|first| views.iter().all(|v| v == *first)) {
            return Site::View(*arg);
        }
        match groups.split_first() {
            Some((first, others)) if !others.is_empty() && others.iter().all(|g| g == first) => {
                Site::Same(Box::new((*first).clone()))
            }
            _ => Site::Changing(Vec::new()),
        }
    }
}

impl Sized {
    /// For a call that computes these groups, at several sizes. Of its routines some statements are `known` to be the same at others.
    fn new(unit: Core, mut groups: Vec<Arc<Stages>>, mut known: Vec<Arc<SharedBody>>) -> Option<Sized> {
        for group in &mut groups {
            if let Cow::Owned(new) = with_shared(Cow::Borrowed(group), &known) {
                *group = Arc::new(new);
            }
            known.extend(
                shared_bodies(group).filter(|s| !known.iter().any(|k| Arc::ptr_eq(k, s))).cloned().collect::<Vec<_>>(),
            );
        }
        // What extents of 1 leave out shows at others.
        let mut tried: Vec<Vec<Cow<'_, Stages>>> = Vec::new();
        let found = groups.iter().skip(1).find_map(|pattern| {
            let pattern = Pattern::new(pattern);
            let conformed: Vec<Cow<'_, Stages>> = groups.iter().map(|g| conformed(g, &pattern)).collect();
            if tried.contains(&conformed) {
                return None;
            }
            let found = Sized::like(unit, pattern, &conformed);
            tried.push(conformed);
            found
        });
        drop(tried);
        found.map(|found| Sized { looked_at: groups, shared: known, ..found })
    }

    /// The same, where what is the same at all sizes is so at a further one, too: of that it can then be told what changes without making its
    /// kernel, as of those like it. None where it can't.
    fn looking_at(&self, group: &Arc<Stages>, unit: Core) -> Option<(Sized, Member)> {
        if self.decisions.tell_nothing() || self.looked_at.len() >= MOST_LOOKED_AT {
            return None;
        }
        let all = self.looked_at.iter().chain([group]).cloned().collect();
        let found = Sized::new(unit, all, self.shared.clone())?;
        let member = found.member(&with_shared(conformed(group, &found.pattern), &found.shared), unit)?;
        Some((found, member))
    }

    /// By groups that have the form of `pattern`.
    fn like(unit: Core, pattern: Pattern, groups: &[Cow<'_, Stages>]) -> Option<Sized> {
        let first: &Stages = groups.first()?;
        let alike = groups[1..].iter().map(|g| &**g).filter(|g| *g != first && changing(&[first, g]).is_some());
        let all: Vec<&Stages> = [first].into_iter().chain(alike).collect();
        let changing = changing(&all)?;
        let decided_by = |by: &Stages| -> Option<(Decisions, Vec<(Kernel, Outline)>)> {
            let others = all.iter().copied().filter(|g| *g != by);
            let all: Vec<&Stages> = [by].into_iter().chain(others).collect();
            let decisions = noted(&all, unit, &changing)?;
            let outlined = |g: &&Stages| -> Option<(Kernel, Outline)> {
                let (kernel, _) = schedule_sized("", g, unit, &changing, Some(&decisions))?;
                let outline = kernel.outline();
                Some((kernel, outline))
            };
            // A size at which decisions can't be taken says nothing of others.
            let mut kernels: Vec<(Kernel, Outline)> = all.par_iter().with_max_len(1).filter_map(outlined).collect();
            let structure = kernels.first()?.1.structure;
            kernels.retain(|(_, outline)| outline.structure == structure);
            Some((decisions, kernels))
        };
        let (mut decisions, mut kernels) = decided_by(first)?;
        for other in all[1..].iter().take(OTHER_DECIDERS) {
            if kernels.len() == all.len() {
                break;
            }
            // What was decided at one size may be what only that one allows, as where all extents are even.
            match decided_by(other) {
                Some(more) if more.1.len() > kernels.len() => (decisions, kernels) = more,
                _ => {}
            }
        }
        // Of one size alone it is not known what changes.
        if kernels.len() < 2 {
            return None;
        }
        let family = Family::of(&kernels)?;
        let kernel = sound(&family)?;
        Some(Sized { pattern, changing, decisions, family, kernel, looked_at: Vec::new(), shared: Vec::new() })
    }

    /// The kernel for one size, where what was decided can be done there.
    fn scheduled(&self, group: &Stages, unit: Core) -> Option<Kernel> {
        Some(schedule_sized("", group, unit, &self.changing, Some(&self.decisions))?.0)
    }

    /// What the kernel for one size tells the family's, where that can be found out without making it.
    fn member(&self, group: &Stages, unit: Core) -> Option<Member> {
        let numbers = numbers_sized(group, unit, &self.changing, &self.decisions)?;
        self.family.member_by(&numbers.first, numbers.scratch)
    }

    /// Has the family's kernel take further numbers, where that one becomes a member by it.
    fn join(&mut self, kernel: &Kernel) -> Option<(Arc<SizedKernel>, Member)> {
        if let Some(member) = self.family.member(kernel) {
            return Some((self.kernel.clone(), member));
        }
        let mut family = self.family.clone();
        if !family.join(kernel) {
            return None;
        }
        let made = sound(&family)?;
        let member = family.member(kernel)?;
        (self.family, self.kernel) = (family, made);
        Some((self.kernel.clone(), member))
    }
}

/// The argument that a call's result is, byte for byte. What is put after something is stored there.
pub fn as_view(group: &Group) -> Option<usize> {
    if group.after.is_some() { None } else { is_view(&group.stages) }
}

/// The kernel of a family, where it satisfies the checker: what is known of its parameters may not be enough for that.
fn sound(family: &Family) -> Option<Arc<SizedKernel>> {
    let kernel = Some(family.kernel()).filter(|k| check(k).is_ok())?;
    let digest = kernel.digest().0 as u64;
    Some(Arc::new(SizedKernel { kernel, digest }))
}

/// The statements of routines that are the same at all sizes.
fn shared_bodies(group: &Stages) -> impl Iterator<Item = &Arc<SharedBody>> {
    group.definitions.iter().filter_map(|d| match d {
        Definition::Routine(r) => r.shared.as_ref(),
        Definition::Stage(_) => None,
    })
}

/// The same group, with those of its statements that are known in the places where they are known.
fn with_shared<'a>(group: Cow<'a, Stages>, known: &[Arc<SharedBody>]) -> Cow<'a, Stages> {
    let known = |s: &Arc<SharedBody>| known.iter().find(|k| Arc::ptr_eq(k, s) || k.is_like(s));
    if shared_bodies(&group).all(|s| known(s).is_none_or(|k| Arc::ptr_eq(k, s))) {
        return group;
    }
    let mut group = group.into_owned();
    for d in &mut group.definitions {
        let Definition::Routine(r) = d else { continue };
        if let Some(known) = r.shared.as_ref().and_then(known) {
            r.body = known.body.clone();
            r.shared = Some(known.clone());
        }
    }
    Cow::Owned(group)
}

/// The same group, where axes of extent 1 stand still as they do in the pattern: an index along one is 0.
fn conformed<'a>(group: &'a Stages, pattern: &Pattern) -> Cow<'a, Stages> {
    let axes = |s: &Stage| -> Vec<Axis> {
        let reduced = match &s.body {
            Body::Reduce { axes, .. } => &axes[..],
            Body::Map(_) => &[],
        };
        s.axes.iter().chain(reduced).copied().collect()
    };
    let value = |d: &Definition, p: &Definition| -> Option<Scalar> {
        let (Definition::Stage(stage), Definition::Stage(p)) = (d, p) else { return None };
        let ones: HashSet<AxisId> = axes(stage).into_iter().filter(|a| a.extent == 1).map(|a| a.id).collect();
        let (value, p) = match (&stage.body, &p.body) {
            _ if ones.is_empty() => return None,
            (Body::Map(value), Body::Map(p)) => (value, p),
            (Body::Reduce { value, .. }, Body::Reduce { value: p, .. }) => (value, p),
            _ => return None,
        };
        let stands = stands(value, p, &ones, &mut HashSet::new());
        (!stands).then(|| still(value, p, &ones, &mut HashMap::new()))
    };
    let both = group.definitions.iter().zip(&pattern.stages.definitions).zip(&pattern.holds_0);
    let both = both.enumerate().filter(|(_, (_, holds_0))| **holds_0);
    let values: Vec<(usize, Scalar)> =
        both.filter_map(|(i, ((d, p), _))| value(d, p).map(|value| (i, value))).collect();
    if values.is_empty() {
        return Cow::Borrowed(group);
    }
    let mut group = group.clone();
    for (i, new) in values {
        if let Definition::Stage(Stage { body: Body::Map(value) | Body::Reduce { value, .. }, .. }) =
            &mut group.definitions[i]
        {
            *value = new;
        }
    }
    Cow::Owned(group)
}

/// Whether [`still`] leaves an expression as it is. `met` has shared parts of which that is known.
fn stands(e: &Scalar, like: &Scalar, ones: &HashSet<AxisId>, met: &mut HashSet<(usize, usize)>) -> bool {
    match (e.kind(), like.kind()) {
        (ScalarKind::Axis(a), ScalarKind::Int(0)) if ones.contains(a) => return false,
        (ScalarKind::Int(_) | ScalarKind::Float(_) | ScalarKind::Axis(_), _) => return true,
        _ => {}
    }
    if e.key() == like.key() || e.is_shared() && !met.insert((e.key(), like.key())) {
        return true;
    }
    let (mine, theirs) = (e.operands(), like.operands());
    let alike = std::mem::discriminant(e.kind()) == std::mem::discriminant(like.kind()) && mine.len() == theirs.len();
    !alike || mine.into_iter().zip(theirs).all(|(e, like)| stands(e, like, ones, met))
}

/// The expression with 0 for those axes of extent 1 where the other expression has it.
fn still(e: &Scalar, like: &Scalar, ones: &HashSet<AxisId>, done: &mut HashMap<(usize, usize), Scalar>) -> Scalar {
    match (e.kind(), like.kind()) {
        (ScalarKind::Axis(a), ScalarKind::Int(0)) if ones.contains(a) => return like.clone(),
        (ScalarKind::Int(_) | ScalarKind::Float(_) | ScalarKind::Axis(_), _) => return e.clone(),
        _ => {}
    }
    let key = (e.key(), like.key());
    if let Some(known) = done.get(&key) {
        return known.clone();
    }
    let (mine, theirs) = (e.operands(), like.operands());
    let alike = std::mem::discriminant(e.kind()) == std::mem::discriminant(like.kind()) && mine.len() == theirs.len();
    let mut theirs = theirs.into_iter();
    let new = match alike {
        true => e.map_operands(|o| theirs.next().map_or_else(|| o.clone(), |p| still(o, p, ones, done))),
        false => e.clone(),
    };
    done.insert(key, new.clone());
    new
}
