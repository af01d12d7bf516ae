//! An exploration as a page.

use super::{Exploration, Run};
use crate::report::{Cell, Page, Plot, Point, Series, Table};

const MS: f64 = 1e3;

fn latency(run: &Run) -> String {
    run.median_s.map_or("no program".into(), |s| format!("{:.3} ms", MS * s))
}

/// What is said of a run where the pointer rests on it.
fn said(run: &Run) -> String {
    let cost = run.cost.map_or(String::new(), |c| format!("\ncost {c:.4e}"));
    format!("{}\n{}{cost}", run.name, latency(run))
}

/// How much slower than the fastest, in words.
fn slower(run: &Run) -> String {
    match run.regret {
        Some(r) if r < -5e-4 => format!("{:.1} % faster than all of these", -100.0 * r),
        Some(r) if r < 5e-4 => "the fastest of all".into(),
        Some(r) => format!("{:.1} % slower than the fastest", 100.0 * r),
        None => run.refused.as_ref().map_or("not measured".into(), |f| format!("refused by {}", f.at)),
    }
}

/// Latency of each order, sorted.
fn ranks(x: &Exploration) -> Plot {
    let points = x.ranked().into_iter().enumerate().filter_map(|(rank, i)| {
        let run = &x.orders[i];
        Some(Point::new(rank as f64 + 1.0, MS * run.median_s?).label(said(run)))
    });
    let mut plot = Plot::new("orders, from the fastest to the slowest", "median latency (ms)")
        .scatter(Series::new("orders", points.collect()));
    if let Some(s) = x.saturation.median_s {
        plot = plot.level("one saturation", MS * s);
    }
    plot
}

/// Each different program: what the model says, and what the machine says.
fn costs(x: &Exploration) -> Plot {
    let mut seen = Vec::new();
    let mut points = Vec::new();
    for run in &x.orders {
        if let (Some(program), Some(cost), Some(s)) = (&run.program, run.cost, run.median_s)
            && !seen.contains(&program)
        {
            seen.push(program);
            let orders = x.orders.iter().filter(|r| r.program.as_ref() == Some(program)).count();
            points.push(Point::new(cost, MS * s).label(format!("{}\n{orders} orders", said(run))));
        }
    }
    let one = |run: &Run| {
        let (cost, s) = (run.cost?, run.median_s?);
        Some(Point::new(cost, MS * s).label(said(run)))
    };
    Plot::new(format!("cost ({})", x.cost_model), "median latency (ms)")
        .scatter(Series::new("programs of orders", points))
        .scatter(Series::new("one saturation", one(&x.saturation).into_iter().collect()))
}

/// Which share of the orders is within so much of the fastest.
fn regrets(x: &Exploration) -> Plot {
    let ranked = x.ranked();
    let all = x.orders.len().max(1) as f64;
    let points = ranked.iter().enumerate().filter_map(|(rank, &i)| {
        let run = &x.orders[i];
        let share = 100.0 * (rank as f64 + 1.0) / all;
        Some(
            Point::new(100.0 * run.regret?, share)
                .label(format!("{}\n{share:.0} % of the orders are as fast", said(run))),
        )
    });
    let origin = Point::new(0.0, 0.0).label("the fastest program of all");
    let points = std::iter::once(origin).chain(points);
    let saturation = x.saturation.regret.map(|r| Point::new(100.0 * r, 0.0).label(said(&x.saturation)));
    Plot::new("slower than the fastest by (%)", "orders (%)")
        .from_zero(true, true)
        .steps(Series::new("orders", points.collect()))
        .scatter(Series::new("one saturation", saturation.into_iter().collect()))
}

fn anytime(x: &Exploration) -> Plot {
    let points = x.anytime.iter().map(|a| {
        let text = format!("{} rounds, {} e-nodes\ncost {:.4e}", a.rounds, a.nodes, a.cost);
        Point::new(a.seconds, a.cost).label(text)
    });
    Plot::new("seconds of saturation and extraction", format!("cost ({})", x.cost_model))
        .from_zero(true, false)
        .line(Series::new("cheapest program so far", points.collect()))
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// For each two passes: how the orders with the one first compare with those with the other first.
fn pairs(x: &Exploration) -> Table {
    let mut table = Table::new(
        "pairs",
        &[
            "first",
            "then",
            "median (ms)",
            "the other way round (ms)",
            "ratio",
            "refused",
            "refused the other way round",
        ],
    );
    let labels: Vec<&str> = x.members.iter().map(|m| m.label.as_str()).collect();
    let mut rows = Vec::new();
    for (i, a) in labels.iter().enumerate() {
        for b in &labels[i + 1..] {
            let place = |r: &Run, name: &str| r.order.iter().position(|p| p == name);
            let (ab, ba): (Vec<&Run>, Vec<&Run>) = x.orders.iter().partition(|r| place(r, a) < place(r, b));
            let of = |runs: &[&Run]| median(runs.iter().filter_map(|r| r.median_s).collect());
            let refused = |runs: &[&Run]| runs.iter().filter(|r| r.refused.is_some()).count();
            let mut row = (*a, *b, of(&ab), of(&ba), refused(&ab), refused(&ba));
            if row.3.unwrap_or(f64::INFINITY) < row.2.unwrap_or(f64::INFINITY) {
                row = (row.1, row.0, row.3, row.2, row.5, row.4);
            }
            let ratio = row.3.zip(row.2).map(|(slow, fast)| slow / fast);
            rows.push((ratio, row));
        }
    }
    rows.sort_by(|a, b| b.0.unwrap_or(f64::INFINITY).total_cmp(&a.0.unwrap_or(f64::INFINITY)));
    for (ratio, (a, b, ab, ba, refused, other)) in rows {
        table.row(vec![
            Cell::text(a),
            Cell::text(b),
            Cell::number(ab.map(|s| MS * s), 3),
            Cell::number(ba.map(|s| MS * s), 3),
            Cell::number(ratio, 2),
            Cell::number(Some(refused as f64), 0),
            Cell::number(Some(other as f64), 0),
        ]);
    }
    table
}

fn runs(x: &Exploration) -> Table {
    let heads = [
        "order",
        "median (ms)",
        "min (ms)",
        "p90 (ms)",
        "slower (%)",
        "cost",
        "kernels",
        "compiled in (s)",
        "differs by",
        "program",
    ];
    let mut table = Table::new("orders", &heads).long();
    let row = |r: &Run| {
        let ms = |s: Option<f64>| Cell::number(s.map(|s| MS * s), 3);
        vec![
            Cell::text(r.name.replace(", ", " → ")),
            ms(r.median_s),
            ms(r.min_s),
            ms(r.p90_s),
            Cell::number(r.regret.map(|r| 100.0 * r), 1),
            Cell::scientific(r.cost),
            Cell::number(r.kernels.map(|k| k as f64), 0),
            Cell::number(r.code_s.map(|s| s + r.passes_s), 2),
            Cell::scientific(r.difference),
            Cell::text(r.program.as_deref().map_or("–", |p| &p[..8])),
        ]
    };
    table.marked_row(row(&x.saturation));
    if x.default.program != x.saturation.program {
        table.row(row(&x.default));
    }
    table.row(row(&x.baseline));
    let ranked = x.ranked();
    ranked.iter().for_each(|&i| table.row(row(&x.orders[i])));
    (0..x.orders.len()).filter(|i| !ranked.contains(i)).for_each(|i| table.row(row(&x.orders[i])));
    table
}

/// Orders that gave no program, by where and why.
fn refusals(x: &Exploration) -> Table {
    let mut groups: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for (run, why) in x.refused() {
        match groups.iter_mut().find(|g| g.0 == why.at && g.1 == why.reason) {
            Some(g) => g.2.push(&run.name),
            None => groups.push((&why.at, &why.reason, vec![&run.name])),
        }
    }
    let mut table = Table::new("refused", &["refused by", "reason", "orders", "such as"]);
    for (at, reason, names) in groups {
        let number = Cell::number(Some(names.len() as f64), 0);
        table.row(vec![Cell::text(at), Cell::text(reason), number, Cell::text(names[0].replace(", ", " → "))]);
    }
    table
}

fn lead(x: &Exploration) -> String {
    let drawn = match x.orders_possible > x.orders.len() as u64 {
        true => format!("{} of the {} orders (drawn with seed {})", x.orders.len(), x.orders_possible, x.seed),
        false => format!("all {} orders", x.orders.len()),
    };
    let names: Vec<&str> = x.members.iter().map(|m| m.label.as_str()).collect();
    format!("{}: one saturation against {drawn} of {}.", x.model, names.join(", "))
}

/// The page.
pub fn page(x: &Exploration) -> String {
    let of = |i: Option<usize>| i.map(|i| &x.orders[i]);
    let fact = |name: &'static str, run: Option<&Run>, named: bool| {
        let run = run?;
        let remark = if named { format!("{}; {}", run.name.replace(", ", " → "), slower(run)) } else { slower(run) };
        Some((name, latency(run), remark))
    };
    let refused = x.refused().count();
    let mut facts: Vec<(&str, String, String)> = [
        fact("one saturation", Some(&x.saturation), false),
        fact("best order", of(x.best), true),
        fact("median order", of(x.median), false),
        fact("worst order", of(x.worst), true),
    ]
    .into_iter()
    .flatten()
    .collect();
    if x.default.program != x.saturation.program {
        facts.extend(fact("default pipeline", Some(&x.default), false));
    }
    let shared = format!("{refused} orders refused; {} passes run instead of {}", x.passes_run, x.passes_written);
    facts.push(("different programs", x.programs.to_string(), shared));
    let mut page = Page::new(format!("Orders of passes: {}", x.model)).lead(lead(x)).facts(&facts);
    page = page
        .figure(
            "Latency of each order",
            "A dot is an order; the dashed line is the one saturation. Rest the pointer on a dot for its passes.",
            &ranks(x),
        )
        .figure(
            "What the cost model says",
            "Each different program by its cost and its latency: where the model is right, dots rise to the right.",
            &costs(x),
        )
        .figure(
            "How much an order matters",
            "The share of orders that are no more than so much slower than the fastest program of all.",
            &regrets(x),
        );
    if !x.anytime.is_empty() {
        page = page.figure(
            "Stopping the saturation early",
            "The cost of what is extracted after each round.",
            &anytime(x),
        );
    }
    if x.members.len() > 1 {
        page = page.heading("Who before whom").paragraph(
            "The median of the orders in which the one pass comes before the other, against that of those in which it comes after.",
        );
        page = page.table(&pairs(x));
    }
    if refused > 0 {
        page = page.heading("Refused").table(&refusals(x));
    }
    page = page
        .heading("Orders")
        .paragraph("Heads sort. Orders that give the same program were measured together.")
        .table(&runs(x));
    let passes = x.members.iter().map(|m| (m.label.as_str(), m.pass.as_str()));
    page = page.heading("Passes").pairs(passes);
    let around = [
        ("before every order", x.around.0.join(", ")),
        ("after every order", x.around.1.join(", ")),
        ("one saturation", x.saturation_passes.join(", ")),
    ];
    page = page.pairs(around);
    if let Some(s) = &x.saturation.saturated {
        let text = format!(
            "{} after {} rounds, {} e-nodes in {} classes, {:.2} s",
            s.stop, s.rounds, s.nodes, s.classes, s.seconds
        );
        page = page.pairs([("its e-graph", text)]);
    }
    page = page.heading("Machine").pairs(x.machine.iter().map(|(n, v)| (n, v)));
    let settings = x.settings.iter().filter(|(_, v)| !v.is_empty()).map(|(n, v)| (n, v));
    page = page.heading("Settings").pairs(settings);
    page = page.pairs([
        ("explored in", format!("{:.1} s, {} results known from before", x.seconds, x.resumed)),
        ("resat", x.resat.clone()),
    ]);
    page.render()
}
