//! What programs compute with. Values may cross threads, are shared by cloning, and are dropped without recursion.

use std::{
    cell::{Cell, RefCell},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use smallvec::SmallVec;

use crate::tensor::{self, Tensor};

/// What a register holds. Cloning shares.
#[derive(Clone)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A tuple.
    Tuple(Fields),
    /// A value of an algebraic data type.
    Adt(Adt),
    /// A function, with the values that it sees.
    Closure(Closure),
    /// A mutable cell.
    Ref(MutableCell),
}

/// Shared values, one after another. Without any, nothing is allocated.
#[derive(Clone, Default)]
pub struct Fields(Option<Arc<Buried>>);

/// The value of a data type: which constructor made it, and of what.
#[derive(Clone)]
pub struct Adt {
    /// The constructor's number within its data type.
    pub tag: u32,
    /// What it was given.
    pub fields: Fields,
}

/// A function of the program that made it, and the values that it sees.
#[derive(Clone)]
pub struct Closure {
    pub(super) function: u32,
    pub(super) captures: Fields,
}

/// A mutable cell.
#[derive(Clone)]
pub struct MutableCell(Arc<CellBox>);

/// Two values lie in the allocation itself: a list's cells are one allocation each.
type Several = SmallVec<[Value; 2]>;

/// Values that are dropped without recursion: a list may be longer than the stack is deep.
struct Buried(Several);

/// What a cell holds; nothing once it was cleared.
pub(super) struct CellBox(Mutex<Option<Value>>);

impl Drop for Buried {
    fn drop(&mut self) {
        bury(std::mem::take(&mut self.0));
    }
}

impl Drop for CellBox {
    fn drop(&mut self) {
        bury(self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}

thread_local! {
    static BURYING: Cell<bool> = const { Cell::new(false) };
    static GRAVES: RefCell<Vec<Value>> = const { RefCell::new(Vec::new()) };
}

/// Drops values one after another instead of one within another: what they are made of comes here too, and waits.
fn bury(values: impl IntoIterator<Item = Value>) {
    let mut nested: Several = values.into_iter().filter(|v| !v.is_flat()).collect();
    if nested.is_empty() {
        return;
    }
    // While the thread itself goes, its locals may have gone: then values are dropped as they are.
    let first = BURYING.try_with(|b| !b.replace(true)).unwrap_or(false);
    let queued = GRAVES.try_with(|g| g.borrow_mut().extend(nested.drain(..))).is_ok();
    drop(nested);
    if first && queued {
        while let Some(v) = GRAVES.with(|g| g.borrow_mut().pop()) {
            drop(v);
        }
        BURYING.with(|b| b.set(false));
    }
}

impl Fields {
    /// The values, in order.
    pub fn as_slice(&self) -> &[Value] {
        self.0.as_ref().map_or(&[], |f| &f.0)
    }

    /// Takes the value at a place: out of it, where nothing else shares the values.
    pub(super) fn into_field(mut self, index: usize) -> Option<Value> {
        match Arc::get_mut(self.0.as_mut()?) {
            Some(only) if index < only.0.len() => Some(only.0.swap_remove(index)),
            _ => self.as_slice().get(index).cloned(),
        }
    }

    /// Where the values lie, to tell shared ones from others.
    fn address(&self) -> Option<*const ()> {
        self.0.as_ref().map(|f| Arc::as_ptr(f).cast())
    }
}

impl FromIterator<Value> for Fields {
    fn from_iter<I: IntoIterator<Item = Value>>(values: I) -> Fields {
        let values: Several = values.into_iter().collect();
        Fields((!values.is_empty()).then(|| Arc::new(Buried(values))))
    }
}

impl MutableCell {
    pub(super) fn new(v: Value) -> MutableCell {
        MutableCell(Arc::new(CellBox(Mutex::new(Some(v)))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Value>> {
        // A value is replaced as a whole: whatever panicked has not left half of one.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the cell holds now; nothing where the run that made it has ended and did not give it out.
    pub fn get(&self) -> Option<Value> {
        self.lock().clone()
    }

    pub(super) fn set(&self, v: Value) {
        let old = self.lock().replace(v);
        bury(old);
    }

    fn clear(&self) {
        let old = self.lock().take();
        bury(old);
    }
}

/// The cells that a run has made: values that hold themselves can do so only through one of them.
#[derive(Default)]
pub(super) struct Cells {
    made: Vec<Weak<CellBox>>,
    prune_at: usize,
}

impl Cells {
    /// Makes a cell.
    pub(super) fn make(&mut self, v: Value) -> MutableCell {
        const FEWEST: usize = 1024;
        if self.made.len() >= self.prune_at.max(FEWEST) {
            self.made.retain(|w| w.strong_count() > 0);
            self.prune_at = 2 * self.made.len();
        }
        let cell = MutableCell::new(v);
        self.made.push(Arc::downgrade(&cell.0));
        cell
    }

    /// Empties the cells that the result does not hold: whatever they kept alive in circles goes.
    pub(super) fn clear_all_but(self, result: Option<&Value>) {
        let left: Vec<MutableCell> = self.made.iter().filter_map(Weak::upgrade).map(MutableCell).collect();
        if left.is_empty() {
            return;
        }
        let mut seen: hashbrown::HashSet<*const ()> = hashbrown::HashSet::new();
        let mut todo: Vec<Value> = result.cloned().into_iter().collect();
        while let Some(v) = todo.pop() {
            match v {
                Value::Tensor(_) => {}
                Value::Tuple(f) | Value::Adt(Adt { fields: f, .. }) | Value::Closure(Closure { captures: f, .. }) => {
                    if f.address().is_some_and(|a| seen.insert(a)) {
                        todo.extend(f.as_slice().iter().cloned());
                    }
                }
                Value::Ref(cell) => {
                    if seen.insert(Arc::as_ptr(&cell.0).cast()) {
                        todo.extend(cell.get());
                    }
                }
            }
        }
        for cell in left.iter().filter(|c| !seen.contains(&Arc::as_ptr(&c.0).cast())) {
            cell.clear();
        }
    }
}

impl Value {
    /// The tuple of these fields.
    pub fn tuple(fields: impl IntoIterator<Item = Value>) -> Value {
        Value::Tuple(fields.into_iter().collect())
    }

    /// Whether nothing else is inside.
    fn is_flat(&self) -> bool {
        match self {
            Value::Tensor(_) => true,
            Value::Tuple(f) | Value::Adt(Adt { fields: f, .. }) | Value::Closure(Closure { captures: f, .. }) => {
                f.0.is_none()
            }
            Value::Ref(_) => false,
        }
    }

    /// All tensors in it, depth first, fields of data types included: the order in which outputs are numbered. `None` where
    /// a function is inside.
    pub fn flatten(&self) -> Option<Vec<Tensor>> {
        let mut out = Vec::new();
        let mut todo = vec![self.clone()];
        while let Some(v) = todo.pop() {
            match v {
                Value::Tensor(t) => out.push(t),
                Value::Tuple(f) | Value::Adt(Adt { fields: f, .. }) => todo.extend(f.as_slice().iter().rev().cloned()),
                Value::Ref(cell) => todo.extend(cell.get()),
                Value::Closure(_) => return None,
            }
        }
        Some(out)
    }

    /// What kind of value it is, for messages.
    pub(super) fn kind(&self) -> String {
        match self {
            Value::Tensor(t) => format!("{t:?}"),
            Value::Tuple(f) => format!("a tuple of {}", f.as_slice().len()),
            Value::Adt(a) => format!("a value of constructor number {}", a.tag),
            Value::Closure(_) => "a function".into(),
            Value::Ref(_) => "a reference".into(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Value {
        Value::Tensor(t)
    }
}

impl From<tensor::Value> for Value {
    fn from(v: tensor::Value) -> Value {
        match v {
            tensor::Value::Tensor(t) => Value::Tensor(t),
            tensor::Value::Tuple(f) => Value::tuple(f.into_iter().map(Value::from)),
        }
    }
}

impl fmt::Debug for Value {
    /// Shallow: a list may be longer than the stack is deep.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind())
    }
}
