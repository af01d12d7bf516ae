//! Approximate rules: what they bring in is counted, whatever becomes of it, and programs stay within the error that is allowed.

use std::sync::Arc;

use resat::{
    cost::NodeCount,
    diag::Refused,
    pass::{Pass, PassContext, Saturate, Settings},
    relay::text,
    rules,
    saturate::Grade,
    target::Target,
};

/// Two places where a rule saves a node at some error, and an exact rule that makes another form of an approximation.
const RULES: &str = "(ruleset near :numerics approx)
;; Not really.
(rule root-of-exp :error 0.3 (sqrt (exp ?x)) => (nn.relu ?x))
;; Not really.
(rule tanh-twice :error 0.1 (tanh (tanh ?x)) => (tanh ?x))
;; max(x, 0).
(rule relu-is-maximum :numerics exact (nn.relu ?x) => (maximum ?x (const 0 like ?x)))
;; max(x, 0).
(rule relu-of-sum :numerics exact (nn.relu (add ?x ?y)) => (maximum (add ?x ?y) (const 0 like ?x)))";

/// Nodes, predicted error, and text of the cheapest program within an error.
fn within(error: f64, rules: &str, body: &str) -> Result<(f64, f64, String), Refused> {
    let mut settings = Settings { cost: Arc::new(NodeCount), grade: Grade::Approx, ..Settings::new(Target::host()) };
    settings.limits.error = error;
    let module = text::parse_module(
        "test",
        &format!(
            "#[version = \"0.0.5\"] def @main(%x: Tensor[(2, 3), float32], %y: Tensor[(2, 3), float32]) {{ {body} }}"
        ),
    )?;
    let mut cx = PassContext::default();
    let module = Saturate::new("t", rules::load("near.rules", rules)?, &settings).run(module, &mut cx)?;
    let report = cx.reports.remove(0);
    Ok((report.cost_after, report.error, text::print_module(&module)))
}

#[test]
fn errors_of_approximations_add_up_within_the_limit() {
    let body = "add(sqrt(exp(%x)), tanh(tanh(%y)))";
    for (limit, nodes, error) in
        [(0.0, 5.0, 0.0), (0.05, 5.0, 0.0), (0.15, 4.0, 0.1), (0.45, 3.0, 0.4), (f64::INFINITY, 3.0, 0.4)]
    {
        let (cost, predicted, text) = within(limit, RULES, body).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(cost, nodes, "within {limit}: {text}");
        assert!((predicted - error).abs() < 1e-12, "within {limit}: {predicted} instead of {error}: {text}");
    }
}

#[test]
fn what_exact_rules_make_of_an_approximation_has_its_error() {
    // Without inheritance `maximum` would be an exact form of the root.
    let (cost, error, text) = within(0.1, RULES, "sqrt(exp(%x))").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((cost, error), (2.0, 0.0), "{text}");
    let (cost, error, _) = within(0.3, RULES, "sqrt(exp(%x))").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((cost, error), (1.0, 0.3));
    // What the program has itself is exact, also where a rule would make it.
    let (cost, error, text) = within(0.0, RULES, "add(nn.relu(%x), maximum(%x, 0f))").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((cost, error), (2.0, 0.0), "{text}");
}

#[test]
fn what_holds_for_an_approximation_does_not_make_exact_terms_equal() {
    // x may be below zero: relu(tanh(tanh(x))) is not tanh(tanh(x)), only relu of its approximation is that.
    let rules = "(ruleset near :numerics approx)
;; Steps of a hundredth.
(rule coarse :error 0.25 (tanh (tanh ?x)) => (cast {dtype float32} (cast {dtype uint8} ?x)))
;; What was cast from unsigned integers is not negative.
(rule relu-of-cast :numerics exact (nn.relu (as ?y (cast {dtype float32} ?x))) => ?y :when (has-dtype ?x uint8))";
    let body = "nn.relu(tanh(tanh(%x)))";
    let (cost, error, text) = within(0.2, rules, body).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((cost, error), (3.0, 0.0), "{text}");
    // The form of the approximation alone is not kept either, as it would have to be told from the others.
    let (cost, _, text) = within(0.25, rules, body).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(cost, 3.0, "{text}");
}

#[test]
fn an_approximation_that_is_shared_counts_once() {
    let rules = "(ruleset near :numerics approx)
;; Steps of one.
(rule coarse :error 0.25 (exp (exp (exp ?x))) => (cast {dtype float32} (cast {dtype int8} ?x)))";
    let body = "add(nn.relu(exp(exp(exp(%x)))), tanh(exp(exp(exp(%x)))))";
    let (cost, error, text) = within(0.25, rules, body).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((cost, error), (5.0, 0.25), "{text}");
    let (cost, error, text) = within(0.24, rules, body).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((cost, error), (6.0, 0.0), "{text}");
}
