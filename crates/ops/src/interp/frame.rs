//! Activations of functions: the variables and shared results of one call.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use super::value::Value;

/// What one call of a function has bound and computed so far.
pub(super) struct Frame {
    /// The function, by its scope.
    pub(super) scope: u32,
    /// The activation of the function around it, where there is one.
    pub(super) parent: Option<Rc<Frame>>,
    slots: RefCell<Vec<Slot>>,
}

/// A variable or shared result, and how often it may still be asked for.
#[derive(Clone)]
enum Slot {
    Empty,
    Full(Value, u32),
}

/// A value that is asked for from inner functions stays as long as its frame does.
pub(super) const FOREVER: u32 = u32::MAX;

impl Frame {
    pub(super) fn new(scope: u32, parent: Option<Rc<Frame>>, slots: usize) -> Rc<Frame> {
        Rc::new(Frame { scope, parent, slots: RefCell::new(vec![Slot::Empty; slots]) })
    }

    /// The activation so many functions further out.
    pub(super) fn outer(self: &Rc<Frame>, hops: u32) -> Rc<Frame> {
        let mut frame = self;
        for _ in 0..hops {
            frame = frame.parent.as_ref().expect("a scope lies within the ones that it sees");
        }
        frame.clone()
    }

    /// Keeps a value for so many uses.
    pub(super) fn put(&self, slot: u32, value: Value, uses: u32) {
        let new = if uses == 0 { Slot::Empty } else { Slot::Full(value, uses) };
        let old = std::mem::replace(&mut self.slots.borrow_mut()[slot as usize], new);
        drop(old);
    }

    /// Uses a value once; the last use takes it out.
    pub(super) fn take(&self, slot: u32) -> Option<Value> {
        let mut slots = self.slots.borrow_mut();
        let at = &mut slots[slot as usize];
        match at {
            Slot::Empty => None,
            Slot::Full(v, FOREVER) => Some(v.clone()),
            Slot::Full(v, uses) if *uses > 1 => {
                *uses -= 1;
                Some(v.clone())
            }
            Slot::Full(..) => match std::mem::replace(at, Slot::Empty) {
                Slot::Full(v, _) => Some(v),
                Slot::Empty => None,
            },
        }
    }

    /// Forgets everything, which frees closures that see the frame that they are kept in.
    pub(super) fn clear(&self) {
        bury_slots(self.slots.take());
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        bury_slots(self.slots.take());
        // Frames around it, one after another: they may be nested deeper than the stack is.
        let mut parent = self.parent.take();
        while let Some(p) = parent {
            parent = Rc::into_inner(p).and_then(|mut p| p.parent.take());
        }
    }
}

fn bury_slots(slots: Vec<Slot>) {
    let values = slots.into_iter().filter_map(|s| match s {
        Slot::Full(v, _) => Some(v),
        Slot::Empty => None,
    });
    bury(values.collect());
}

thread_local! {
    static BURYING: Cell<bool> = const { Cell::new(false) };
    static GRAVES: RefCell<Vec<Value>> = const { RefCell::new(Vec::new()) };
}

/// Drops values one after another instead of one within another: what they are made of comes here too, and waits.
pub(super) fn bury(values: Vec<Value>) {
    if values.iter().all(|v| matches!(v, Value::Tensor(_) | Value::Op(_) | Value::Constructor(_))) {
        return;
    }
    // While the thread itself goes, its locals may have gone: then values are dropped as they are.
    let mut values = Some(values);
    let first = BURYING.try_with(|b| !b.replace(true)).unwrap_or(false);
    let queued = GRAVES.try_with(|g| g.borrow_mut().append(values.get_or_insert_default())).is_ok();
    drop(values);
    if first && queued {
        while let Some(v) = GRAVES.with(|g| g.borrow_mut().pop()) {
            drop(v);
        }
        BURYING.with(|b| b.set(false));
    }
}
