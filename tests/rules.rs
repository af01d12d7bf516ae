//! Every shipped rule is sound by its grade, one test per rule; wrong rules are caught; errors of rule files are reported all at
//! once, as recorded beside them in `tests/fail`.

use std::path::Path;

use libtest_mimic::{Arguments, Failed, Trial};
use resat::rules;

fn main() {
    let args = Arguments::from_args();
    let mut trials: Vec<Trial> = rules::shipped_definitions()
        .iter()
        .flat_map(|set| &set.rules)
        .map(|rule| {
            Trial::test(rule.name().to_string(), move || match rules::check(rule) {
                report if report.is_sound() => Ok(()),
                report => Err(Failed::from(report.to_string())),
            })
        })
        .collect();
    if !args.list {
        let sets = rules::shipped_definitions();
        let n: usize = sets.iter().map(|s| s.rules.len()).sum();
        println!("{n} rules in {} rulesets are shipped", sets.len());
    }
    trials.push(Trial::test("every rule says what it is", documented));
    trials.push(Trial::test("wrong rules are caught", wrong_rules_are_caught));
    trials.push(Trial::test("bounds are kept", bounds_are_kept));
    trials.push(Trial::test("special values are kept", special_values_are_kept));
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fail")).into_iter().flatten() {
        let path = entry.expect("the folder can be read").path();
        if path.extension().is_some_and(|e| e == "rules") {
            let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
            trials.push(Trial::test(format!("fail/{name}"), move || refused(&path)));
        }
    }
    trials.sort_by(|a, b| a.name().cmp(b.name()));
    libtest_mimic::run(&args, trials).exit();
}

fn documented() -> Result<(), Failed> {
    for set in rules::shipped_definitions() {
        let bare = set.rules.iter().find(|r| r.doc().is_empty());
        if let Some(rule) = bare {
            return Err(format!("{} has no comment with its algebra above it", rule.name()).into());
        }
    }
    Ok(())
}

fn wrong_rules_are_caught() -> Result<(), Failed> {
    let wrong = "(ruleset wrong)
(rule drop-relu (nn.relu ?x) => ?x)
(rule zero-is-nothing (as ?y (~add ?x 0)) => ?x :when (same-type ?x ?y))
(rule type-changes (add ?x ?y) => (nn.relu ?x))
(rule too-far :numerics approx :error 0.01 (exp ?x) => (multiply (exp ?x) (const 1.02 like ?x)))
(rule too-far-for-integers :numerics approx :error 0.001 (nn.relu ?x) => (add (nn.relu ?x) (const 2 like ?x)) :when (int ?x))
(rule never (nn.relu ?x) => (nn.relu (nn.relu ?x)) :when (const ?x) (not (const ?x)))";
    let sets = rules::define("wrong.rules", wrong).map_err(|e| e.to_string())?;
    for rule in &sets[0].rules {
        let report = rules::check(rule);
        if report.is_sound() {
            return Err(format!("the wrong rule {} passes: {report}", rule.name()).into());
        }
    }
    Ok(())
}

/// What holds where all is finite does not keep overflow, infinities, NaN and domains; with guards on constants it may.
fn special_values_are_kept() -> Result<(), Failed> {
    let rules = [
        "(log (exp ?x)) => ?x",
        "(exp (log ?x)) => ?x",
        "(sqrt (multiply ?x ?x)) => (abs ?x)",
        "(multiply (sqrt ?x) (sqrt ?x)) => ?x",
        "(add (multiply ?x ?y) (multiply ?x ?z)) => (multiply ?x (add ?y ?z)) :when (same-type ?y ?z)",
        "(divide ?x (divide ?y ?z)) => (divide (multiply ?x ?z) ?y) :when (float ?x)",
    ];
    for (i, rule) in rules.iter().enumerate() {
        for (grade, holds) in [("real", false), ("finite", true)] {
            let text = format!("(ruleset special)\n(rule r{i} :numerics {grade} {rule})");
            let sets = rules::define("special.rules", &text).map_err(|e| e.to_string())?;
            let report = rules::check(&sets[0].rules[0]);
            if report.is_sound() != holds {
                return Err(format!("{rule} as {grade}: {report}").into());
            }
        }
    }
    // With what `:special` asks of constants, and without it, they are two rules of two grades.
    let guarded = "(ruleset special) (rule scale :numerics real
  (multiply (multiply ?x ?c) ?d) => (multiply ?x (multiply ?c ?d)) :when (const ?c) (const ?d) (float ?x)
  :special (bounded ?c) (bounded ?d))";
    let sets = rules::define("special.rules", guarded).map_err(|e| e.to_string())?;
    let found: Vec<String> = sets[0].rules.iter().map(|r| format!("{} {}", r.name(), r.grade())).collect();
    if found != ["special/scale real", "special/scale.finite finite"] {
        return Err(format!("{found:?}").into());
    }
    for rule in &sets[0].rules {
        let report = rules::check(rule);
        if !report.is_sound() {
            return Err(report.to_string().into());
        }
    }
    // A side that has a value alone is wrong at any grade.
    let partial =
        "(ruleset special) (rule shift :numerics finite (right_shift ?x (full {..} ?v)) => (right_shift ?x ?v)
  :when (int ?x) (same-dtype ?x ?v) :sample ((?x [3 0] int8) (?v [] int8 16.0)))";
    let sets = rules::define("special.rules", partial).map_err(|e| e.to_string())?;
    match rules::check(&sets[0].rules[0]) {
        report if report.is_sound() => Err(format!("{report}").into()),
        _ => Ok(()),
    }
}

/// A bound is a share of the largest magnitude, may be computed, and of integers lets the neighbours pass.
fn bounds_are_kept() -> Result<(), Failed> {
    let near = "(ruleset near :numerics approx :error 0.03)
(rule near (exp ?x) => (multiply (exp ?x) (const 1.02 like ?x)))
(rule computed :error (min 0.03 (* 0.01 (rank ?x) 5)) (tanh ?x) => (multiply (tanh ?x) (const 1.02 like ?x)))
(rule neighbours :error 0 (nn.relu ?x) => (maximum (nn.relu ?x) (const 1 like ?x)) :when (int ?x))";
    let sets = rules::define("near.rules", near).map_err(|e| e.to_string())?;
    for rule in &sets[0].rules {
        let report = rules::check(rule);
        if !report.is_sound() {
            return Err(format!("{report}").into());
        }
    }
    Ok(())
}

/// The messages of a bad file are those recorded in the `.stderr` file beside it; `BLESS=1` records them.
fn refused(path: &Path) -> Result<(), Failed> {
    let text = std::fs::read_to_string(path)?;
    let name = path.file_name().expect("a file").to_string_lossy();
    let Err(refused) = rules::define(&name, &text) else { return Err("the file is accepted".into()) };
    let (found, recorded) = (format!("{refused}\n"), path.with_extension("stderr"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&recorded, &found)?;
    }
    let wanted = std::fs::read_to_string(&recorded)?;
    if found != wanted {
        return Err(format!("found\n{found}\nbut recorded is\n{wanted}").into());
    }
    Ok(())
}
