//! Lexical scopes: names and what they are bound to at the present point of the text.

use hashbrown::HashMap;

/// Names bound in nested scopes. Leaving a scope takes as long as it bound names.
#[derive(Debug)]
pub(super) struct Scopes<'a, T> {
    bound: HashMap<&'a str, Vec<T>>,
    log: Vec<&'a str>,
}

/// A point to return to.
#[derive(Copy, Clone, Debug)]
pub(super) struct Mark(usize);

impl<'a, T: Copy> Scopes<'a, T> {
    pub(super) fn new() -> Scopes<'a, T> {
        Scopes { bound: HashMap::new(), log: Vec::new() }
    }

    pub(super) fn bind(&mut self, name: &'a str, value: T) {
        self.bound.entry(name).or_default().push(value);
        self.log.push(name);
    }

    pub(super) fn get(&self, name: &str) -> Option<T> {
        self.bound.get(name).and_then(|v| v.last()).copied()
    }

    /// Remembers the present scope.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.log.len())
    }

    /// Forgets what was bound since the mark.
    pub(super) fn leave(&mut self, mark: Mark) {
        for name in self.log.drain(mark.0..) {
            if let Some(v) = self.bound.get_mut(name) {
                v.pop();
            }
        }
    }

    /// All names that are bound now, in alphabetical order.
    pub(super) fn names(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = self.bound.iter().filter(|(_, v)| !v.is_empty()).map(|(n, _)| *n).collect();
        names.sort_unstable();
        names
    }
}
