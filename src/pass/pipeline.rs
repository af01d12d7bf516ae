//! A sequence of named stages that can be changed by name.

use super::{Pass, PassContext, run_logged};
use crate::{
    diag::{Refused, nearest},
    ir::Module,
};

/// Passes under names of their own: stages are inserted, replaced and removed by name.
#[derive(Default)]
pub struct Pipeline {
    stages: Vec<(String, Box<dyn Pass>)>,
}

/// A pipeline has no stage of that name, or already has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PipelineError {
    /// No stage of that name.
    #[error("the pipeline has no stage `{name}`{}; its stages are {}", suggestion.as_ref().map(|s| format!(" (did you mean `{s}`?)")).unwrap_or_default(), stages.join(", "))]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The nearest name.
        suggestion: Option<String>,
        /// All names.
        stages: Vec<String>,
    },
    /// Several stages run the pass of that name.
    #[error("the stages {} all run the pass `{pass}`: name the one that is meant", stages.join(", "))]
    Several {
        /// The pass that was asked for.
        pass: String,
        /// Its stages.
        stages: Vec<String>,
    },
    /// Two stages of one name.
    #[error("the pipeline already has a stage `{0}`")]
    Duplicate(String),
}

impl Pipeline {
    /// A pipeline without stages.
    pub fn new() -> Pipeline {
        Pipeline::default()
    }

    /// The stages' names, in order.
    pub fn names(&self) -> Vec<&str> {
        self.stages.iter().map(|s| s.0.as_str()).collect()
    }

    /// The stages' names and passes, in order.
    pub fn stages(&self) -> impl Iterator<Item = (&str, &dyn Pass)> {
        self.stages.iter().map(|s| (s.0.as_str(), s.1.as_ref()))
    }

    /// The stages themselves, in order.
    pub fn into_stages(self) -> impl Iterator<Item = (String, Box<dyn Pass>)> {
        self.stages.into_iter()
    }

    /// The place of the stage of that name, or of the one stage that runs the pass of that name.
    fn position(&self, name: &str) -> Result<usize, PipelineError> {
        if let Some(at) = self.stages.iter().position(|s| s.0 == name) {
            return Ok(at);
        }
        let runs = |pass: &str| pass.split('(').next() == Some(name);
        let places: Vec<usize> = (0..self.stages.len()).filter(|&i| runs(&self.stages[i].1.name())).collect();
        let stages = |places: &[usize]| places.iter().map(|&i| self.stages[i].0.clone()).collect();
        match places[..] {
            [at] => Ok(at),
            [] => Err(PipelineError::Unknown {
                name: name.to_owned(),
                suggestion: nearest(name, self.names()).map(str::to_owned),
                stages: self.names().iter().map(|s| s.to_string()).collect(),
            }),
            _ => Err(PipelineError::Several { pass: name.to_owned(), stages: stages(&places) }),
        }
    }

    fn insert(&mut self, at: usize, name: &str, pass: Box<dyn Pass>) -> Result<(), PipelineError> {
        if self.stages.iter().any(|s| s.0 == name) {
            return Err(PipelineError::Duplicate(name.to_owned()));
        }
        self.stages.insert(at, (name.to_owned(), pass));
        Ok(())
    }

    /// Adds a stage at the end.
    pub fn push(&mut self, name: &str, pass: Box<dyn Pass>) -> Result<(), PipelineError> {
        self.insert(self.stages.len(), name, pass)
    }

    /// Adds a stage right before another.
    pub fn run_before(&mut self, other: &str, name: &str, pass: Box<dyn Pass>) -> Result<(), PipelineError> {
        self.insert(self.position(other)?, name, pass)
    }

    /// Adds a stage right after another.
    pub fn run_after(&mut self, other: &str, name: &str, pass: Box<dyn Pass>) -> Result<(), PipelineError> {
        self.insert(self.position(other)? + 1, name, pass)
    }

    /// Puts another pass under a stage's name.
    pub fn replace(&mut self, name: &str, pass: Box<dyn Pass>) -> Result<(), PipelineError> {
        let at = self.position(name)?;
        self.stages[at].1 = pass;
        Ok(())
    }

    /// Gives a stage another name.
    pub fn rename(&mut self, name: &str, new: &str) -> Result<(), PipelineError> {
        let at = self.position(name)?;
        if name != new && self.stages.iter().any(|s| s.0 == new) {
            return Err(PipelineError::Duplicate(new.to_owned()));
        }
        self.stages[at].0 = new.to_owned();
        Ok(())
    }

    /// Takes a stage out.
    pub fn remove(&mut self, name: &str) -> Result<(), PipelineError> {
        let at = self.position(name)?;
        self.stages.remove(at);
        Ok(())
    }
}

impl Pass for Pipeline {
    fn name(&self) -> String {
        self.names().join(",")
    }

    fn run(&self, mut module: Module, cx: &mut PassContext) -> Result<Module, Refused> {
        for (_, pass) in &self.stages {
            module = run_logged(pass.as_ref(), module, cx)?;
        }
        Ok(module)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::FnPass, *};

    fn nothing() -> Box<dyn Pass> {
        Box::new(FnPass("Nothing", Ok))
    }

    #[test]
    fn stages_are_found_by_name() {
        let mut p = Pipeline::new();
        p.push("fold", nothing()).unwrap();
        p.push("fuse", nothing()).unwrap();
        p.run_before("fuse", "layout", nothing()).unwrap();
        p.run_after("fuse", "last", nothing()).unwrap();
        assert_eq!(p.names(), ["fold", "layout", "fuse", "last"]);
        p.remove("layout").unwrap();
        p.rename("last", "end").unwrap();
        assert_eq!(p.rename("end", "fuse"), Err(PipelineError::Duplicate("fuse".into())));
        p.rename("end", "last").unwrap();
        p.replace("last", nothing()).unwrap();
        assert_eq!(p.names(), ["fold", "fuse", "last"]);
        assert_eq!(p.push("fold", nothing()), Err(PipelineError::Duplicate("fold".into())));
        let message = p.remove("fusd").unwrap_err().to_string();
        // A stage is also found by the pass that it runs, where there is one such.
        assert!(matches!(p.remove("Nothing"), Err(PipelineError::Several { .. })));
        p.remove("fuse").unwrap();
        p.remove("last").unwrap();
        p.remove("Nothing").unwrap();
        assert_eq!(p.names(), [""; 0]);
        assert_eq!(message, "the pipeline has no stage `fusd` (did you mean `fuse`?); its stages are fold, fuse, last");
    }
}
