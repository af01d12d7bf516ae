//! `resat explore`: every order of a small program's passes, and the page in a browser.

use std::{
    collections::HashMap,
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::folder::{Folder, Ran};
use resat::{
    diag::Refused,
    driver::Frozen,
    explore::{self, Compiled, Crew, Done, Exploration, Found, Member, Options, OwnPass, Program, Task, Worker},
    infer::infer_types,
    interp,
    ir::Module,
    pass::{BuildConfig, FnPass, Settings},
    relay::text::parse_module,
    target::Target,
    tensor::{Tensor, Value as Given},
};
use serde_json::Value;

/// A convolution and a normalization: inference forms, folding and fusion have something to do.
const PROGRAM: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(1, 4, 8, 8), float32], %w: Tensor[(8, 4, 3, 3), float32], %g: Tensor[(8), float32]) {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=8, kernel_size=[3, 3]);
  %1 = nn.batch_norm(%0, %g, %g, %g, %g);
  %2 = add(1f, 2f);
  multiply(nn.relu(%1.0), %2)
}
";

/// Constants that can't be folded before what nothing uses is gone.
const TRAP: &str = "#[version = \"0.0.5\"]
def @main(%x: Tensor[(4), float32]) {
  let %bad = floor_divide(1, 0);
  nn.relu(%x)
}
";

const PASSES: &str = "SimplifyInference, fold:FoldConstant, FuseOps";

/// A folder with a program.
struct Explored(Folder);

impl Explored {
    fn new(program: &str) -> Explored {
        let folder = Folder::new();
        folder.write("p.relay", program);
        Explored(folder)
    }

    /// `resat explore` of the program.
    fn explore(&self, args: &[&str]) -> Ran {
        let measures = args.iter().any(|a| a.starts_with("--measure-seconds"));
        let briefly: &[&str] = if measures { &[] } else { &["--measure-seconds", "0.02"] };
        self.0.run(&[&["explore", "p.relay"], args, briefly].concat())
    }

    fn json(&self, args: &[&str]) -> Value {
        let stdout = self.explore(&[args, &["--json"]].concat()).done();
        serde_json::from_str(&stdout).expect("it prints JSON")
    }

    fn refused(&self, args: &[&str], parts: &[&str]) {
        self.explore(args).refused(parts);
    }
}

fn array<'a>(v: &'a Value, key: &str) -> &'a Vec<Value> {
    v[key].as_array().unwrap_or_else(|| panic!("`{key}` is no list in {v:#}"))
}

fn number(v: &Value, key: &str) -> f64 {
    v[key].as_f64().unwrap_or_else(|| panic!("`{key}` is no number in {v:#}"))
}

#[test]
fn every_order_is_compared_with_the_saturation() {
    let f = Explored::new(PROGRAM);
    let x = f.json(&["--passes", PASSES, "--anytime"]);
    let orders = array(&x, "orders");
    assert_eq!((orders.len(), x["orders_possible"].as_u64()), (6, Some(6)));
    let mut names: Vec<&str> = orders.iter().map(|o| o["name"].as_str().expect("a name")).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 6);
    for run in orders.iter().chain([&x["saturation"], &x["default"], &x["baseline"]]) {
        assert!(run["refused"].is_null(), "{run:#}");
        assert!(number(run, "median_s") >= number(run, "min_s") && number(run, "p90_s") >= number(run, "median_s"));
        assert!(number(run, "cost") > 0.0 && number(run, "runs") >= 3.0 && number(run, "kernels") >= 1.0);
        assert!(number(run, "difference") < 1e-4, "{run:#}");
        assert_eq!(run["program"].as_str().map(str::len), Some(32));
    }
    // Orders that come to the same share program and measurements.
    let of = |name: &str| orders.iter().find(|o| o["name"] == name).expect("the order");
    let (a, b) = (of("SimplifyInference, fold, FuseOps"), of("fold, SimplifyInference, FuseOps"));
    assert_ne!(a["program"], Value::Null);
    if a["program"] == b["program"] {
        assert_eq!(a["median_s"], b["median_s"]);
    }
    assert!(number(&x, "passes_run") < number(&x, "passes_written"));
    assert!(number(&x, "programs") < 8.0);
    let at = |key: &str| number(&orders[number(&x, key) as usize], "median_s");
    assert!(at("best") <= at("median") && at("median") <= at("worst"));
    let saturated = &x["saturation"]["saturated"];
    let anytime = array(&x, "anytime");
    assert_eq!(anytime.last().map(|a| number(a, "cost")), Some(number(saturated, "cost_after")));
    let summary = f.explore(&["--passes", PASSES]).done();
    assert!(summary.contains("6 orders: ") && summary.contains("best order"), "{summary}");
}

#[test]
fn rulesets_are_ordered_against_their_one_saturation() {
    let x =
        Explored::new(PROGRAM).json(&["--rulesets", "simplify-inference,algebra,fold-scale-bias", "--passes", "fuse"]);
    assert_eq!(array(&x, "orders").len(), 24);
    let x = Explored::new(PROGRAM).json(&["--rulesets", "simplify-inference,algebra"]);
    let passes = x["saturation_passes"].to_string();
    assert!(passes.contains("Saturate(simplify-inference, algebra)") && !passes.contains("(all)"), "{passes}");
}

#[test]
fn more_orders_than_wanted_are_drawn_with_a_seed() {
    let f = Explored::new(PROGRAM);
    let args = ["--passes", "SimplifyInference, FoldConstant, FuseOps, layout", "--max-orders", "5"];
    let names = |x: &Value| array(x, "orders").iter().map(|o| o["name"].to_string()).collect::<Vec<_>>();
    let (a, b) = (f.json(&args), f.json(&args));
    assert_eq!((names(&a).len(), names(&a)), (5, names(&b)));
    assert_ne!(names(&a), names(&f.json(&[&args[..], &["--seed", "1"]].concat())));
    assert_eq!(a["orders_possible"].as_u64(), Some(24));
}

#[test]
fn a_run_that_was_interrupted_goes_on() {
    let f = Explored::new(PROGRAM);
    let args = ["--passes", PASSES, "--state", "state.jsonl"];
    let whole = f.json(&args);
    assert_eq!(whole["resumed"].as_u64(), Some(0));
    let state = fs::read_to_string(f.0.path("state.jsonl")).expect("the state is there");
    let lines: Vec<&str> = state.lines().collect();
    assert!(lines.iter().all(|l| serde_json::from_str::<Value>(l).is_ok()));

    let again = f.json(&args);
    assert_eq!(again["resumed"].as_u64(), Some(lines.len() as u64 - 1));
    assert_eq!((&again["orders"], &again["saturation"]), (&whole["orders"], &whole["saturation"]));
    assert_eq!(fs::read_to_string(f.0.path("state.jsonl")).expect("it is still there"), state);

    // Cut in the middle of a line, among the passes: programs are made again from what is known, and are the same.
    let passes = lines.iter().filter(|l| l.contains("\"kind\":\"pass\"")).count();
    let kept = lines[..passes - 2].join("\n") + "\n" + &lines[passes - 2][..20];
    fs::write(f.0.path("state.jsonl"), kept).expect("the state can be written");
    let resumed = f.json(&args);
    assert_eq!(resumed["resumed"].as_u64(), Some(passes as u64 - 3));
    let programs = |x: &Value| array(x, "orders").iter().map(|o| o["program"].clone()).collect::<Vec<_>>();
    assert_eq!(programs(&resumed), programs(&whole));

    // Another order of the same passes needs nothing new but the orders themselves.
    let other = f.json(&["--passes", "fold:FoldConstant, SimplifyInference, FuseOps", "--state", "state.jsonl"]);
    assert_eq!(other["passes_run"], whole["passes_run"]);

    f.refused(&[&args[..], &["--threads", "1", "--cost", "flops"]].concat(), &["state.jsonl", "another exploration"]);
    fs::write(f.0.path("p.relay"), PROGRAM.replace("2f", "3f")).expect("the program can be written");
    f.refused(&args, &["another exploration", "program differs"]);
    fs::write(f.0.path("state.jsonl"), "nonsense\n").expect("the state can be written");
    f.refused(&args, &["state.jsonl:1", "not the state"]);
}

#[test]
fn orders_that_are_refused_are_results() {
    let f = Explored::new(TRAP);
    let x = f.json(&["--passes", "FoldConstant, DeadCodeElimination", "--remove", "inline", "-o", "page.html"]);
    let orders = array(&x, "orders");
    assert_eq!(orders.len(), 2, "{x:#}");
    assert_eq!(orders[0]["refused"]["at"], "FoldConstant", "{x:#}");
    let reason = orders[0]["refused"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("floor_divide"), "{reason}");
    assert!(orders[0]["program"].is_null() && orders[0]["median_s"].is_null(), "{x:#}");
    assert!(orders[1]["refused"].is_null() && number(&orders[1], "median_s") > 0.0, "{x:#}");
    let html = fs::read_to_string(f.0.path("page.html")).expect("the page is there");
    assert!(html.contains("<h2>Refused</h2>") && html.contains("floor_divide"), "{html}");
}

#[test]
fn what_can_not_be_explored_is_refused() {
    let f = Explored::new(PROGRAM);
    f.refused(&[], &["no passes are given", "--rulesets"]);
    f.refused(&["--passes", "FoldConstant, FuseOp"], &["<passes>:1:15", "`FuseOp`", "did you mean `FuseOps`?"]);
    f.refused(&["--passes", "FuseOps, FuseOps"], &["`FuseOps` is there twice", "LABEL:PASS"]);
    f.refused(&["--rulesets", "algbra"], &["`algbra`", "did you mean `algebra`?"]);
    f.refused(&["--passes", "FuseOps", "--remove", "optimize"], &["stage `optimize`", "inline"]);
    f.refused(&["--passes", "FuseOps", "--measure-seconds=-1"], &["--measure-seconds"]);
    f.refused(&["--passes", "FuseOps", "--max-orders", "0"], &["--max-orders"]);
}

/// The browser, where the machine has one.
fn browser() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names.into_iter().find(|name| {
        let mut probe = Command::new(name);
        probe.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|s| s.success())
    })
}

/// A page after its scripts ran, as the browser has it.
fn opened(browser: &str, page: &std::path::Path, profile: &std::path::Path) -> String {
    let out = profile.with_extension("html");
    let mut child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg("--dump-dom")
        .arg(format!("file://{}", page.display()))
        .stdin(Stdio::null())
        .stdout(fs::File::create(&out).expect("a file can be made"))
        .stderr(Stdio::null())
        .spawn()
        .expect("the browser starts");
    let start = Instant::now();
    while child.try_wait().expect("the browser can be waited for").is_none() {
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().expect("the browser can be stopped");
            panic!("the browser did not open the page within two minutes");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::read_to_string(out).expect("the browser wrote the page")
}

#[test]
fn the_page_opens_in_a_browser() {
    let f = Explored::new(PROGRAM);
    let Ran { code, stderr, .. } = f.explore(&["--passes", PASSES, "--anytime", "-o", "page.html"]);
    assert_eq!(code, Some(0), "{stderr}");
    let html = fs::read_to_string(f.0.path("page.html")).expect("the page is there");
    for reference in ["href=", "src=", "@import", "url("] {
        assert!(!html.contains(reference), "the page refers to something else by `{reference}`");
    }
    let Some(browser) = browser() else {
        eprintln!("SKIPPED: there is no chromium to open the page in; `sh tools/setup.sh tests` installs it");
        return;
    };
    let dom = opened(browser, &f.0.path("page.html"), &f.0.path("profile"));
    assert!(dom.contains("data-ready=\"yes\""), "the page's script did not run to its end:\n{dom}");
    assert!(dom.contains("<p class=\"error\" hidden=\"\"></p>"), "an error is shown:\n{dom}");
    assert_eq!(dom.matches("<svg role=\"img\"").count(), 4, "{dom}");
    assert!(dom.matches("<title>").count() > 6 + 6 + 4, "{dom}");
    let table = dom.split_once("id=\"orders\"").expect("the table of orders").1;
    let rows = table.split_once("</table>").expect("the table ends").0.matches("<tr").count();
    assert_eq!(rows, 1 + 2 + 6, "{table}");
    for part in ["one saturation", "best order", "Who before whom", "fold → FuseOps", "processor", "cost model"] {
        assert!(dom.contains(part), "`{part}` is not in\n{dom}");
    }
}

fn options() -> Options {
    let settings = Settings::new(Target::host());
    Options {
        config: BuildConfig::default(),
        members: Member::parse(PASSES, &settings, &[]).expect("legal"),
        own: Vec::new(),
        settings,
        saturation: None,
        threads: 1,
        max_orders: 720,
        seed: 0,
        measure: Duration::from_millis(5),
        anytime: false,
        state: None,
        model: "p".into(),
        about: Vec::new(),
        workers: 1,
        crew: None,
        on_progress: None,
    }
}

fn explored(options: Options) -> Exploration {
    let module = parse_module("p.relay", PROGRAM).expect("legal");
    let typed = infer_types(module.clone()).expect("well typed");
    let inputs: Vec<Tensor> =
        interp::random_inputs(&typed, 0).expect("tensors").iter().flat_map(Given::flatten).collect();
    explore::explore(&module, &inputs, options).expect("it explores")
}

fn programs(found: &Exploration) -> Vec<(String, Option<String>)> {
    found.orders.iter().map(|run| (run.name.clone(), run.program.clone())).collect()
}

/// A crew that forgets every third task.
struct Careless {
    worker: Worker,
    tasks: Vec<(usize, Task, Module)>,
    taken: usize,
    /// What was compiled, by program: what came of it, and its code.
    compiled: HashMap<String, (String, Option<Frozen>)>,
}

impl Crew for Careless {
    fn room(&self) -> usize {
        2
    }

    fn start(&mut self, number: usize, task: &Task, module: &Module) -> Result<(), Refused> {
        self.tasks.push((number, task.clone(), module.clone()));
        Ok(())
    }

    fn next(&mut self) -> Result<(usize, Option<Done>), Refused> {
        let (number, task, module) = self.tasks.remove(0);
        self.taken += 1;
        if self.taken.is_multiple_of(3) {
            return Ok((number, None));
        }
        Ok((
            number,
            Some(match task {
                Task::Pass { pass, .. } => {
                    let (text, module) = self.worker.run(&pass, module)?.into_parts()?;
                    Done::Pass(Box::new(Found::from_parts(&text, module)?))
                }
                Task::Build { program } => {
                    let (text, frozen) = self.worker.compile(module).into_parts()?;
                    assert!(frozen.is_some(), "a plain program can be sent");
                    self.compiled.insert(program, (text.clone(), frozen));
                    Done::Build(text)
                }
            }),
        ))
    }

    fn measures(&self) -> bool {
        true
    }

    fn measure(&mut self, programs: &[(String, Module)], inputs: &[Tensor]) -> Result<Vec<String>, Refused> {
        let compiled = |(digest, _): &(String, Module)| {
            let (text, frozen) = self.compiled[digest].clone();
            Ok((digest.clone(), Program::Compiled(Compiled::from_parts(&text, frozen)?)))
        };
        self.worker.measure(programs.iter().map(compiled).collect::<Result<_, Refused>>()?, inputs)
    }
}

#[test]
fn whoever_works_finds_the_same() {
    let alone = explored(options());
    let threads = explored(Options { workers: 3, ..options() });
    let worker = Worker::new(options()).expect("legal");
    let crew = Box::new(Careless { worker, tasks: Vec::new(), taken: 0, compiled: HashMap::new() });
    let careless = explored(Options { crew: Some(crew), ..options() });
    for found in [&threads, &careless] {
        assert_eq!(programs(found), programs(&alone));
        assert!(found.orders.iter().all(|run| run.median_s.is_some() && run.difference.is_some_and(|d| d < 1e-4)));
    }
}

#[test]
fn alternatives_and_subsets_are_tried_and_the_winner_can_be_made() {
    let f = Explored::new(PROGRAM);
    let x = f.json(&[
        "--passes",
        "ConvertLayout(from=NCHW, to=\"NHWC|NCHW4c\"), fold:FoldConstant?",
        "--measure-seconds",
        "0.05",
    ]);
    let names: Vec<&str> = array(&x, "orders").iter().map(|o| o["name"].as_str().expect("a name")).collect();
    let [plain, blocked] = ["ConvertLayout[NHWC]", "ConvertLayout[NCHW4c]"];
    let mut wanted: Vec<String> = Vec::new();
    for layout in [plain, blocked] {
        wanted.extend([format!("{layout}, fold"), format!("fold, {layout}"), layout.to_owned()]);
    }
    assert_eq!((names, x["orders_possible"].as_u64()), (wanted.iter().map(String::as_str).collect(), Some(6)));
    // The passes of the fastest are passes that there are.
    let winner = x["winner"].as_str().expect("a winner");
    assert!(
        resat::pass::sequence(winner, &resat::pass::Settings::new(resat::target::Target::host())).is_ok(),
        "{winner}"
    );
}

#[test]
fn passes_of_ones_own_are_ordered_with_others() {
    let own: Vec<OwnPass> = vec![std::sync::Arc::new(FnPass("nothing", Ok))];
    let settings = Settings::new(Target::host());
    let members = Member::parse("FoldConstant, nothing, SimplifyExpr?", &settings, &own).expect("legal");
    assert_eq!(
        members.iter().map(|m| m.label.as_str()).collect::<Vec<_>>(),
        ["FoldConstant", "nothing", "SimplifyExpr"]
    );
    assert!(Member::parse("FoldConstant, nothing", &settings, &[]).is_err());
    let found = explored(Options { own, members, ..options() });
    assert_eq!(found.orders.len(), 8);
    assert!(found.orders.iter().all(|o| o.refused.is_none() && o.order.contains(&"nothing".to_owned())));
}
