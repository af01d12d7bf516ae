//! A page: one HTML file without a single reference to another.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::plot::{GRID, INK, PALETTE, Plot, hex};

/// A page that is written from top to bottom.
#[derive(Debug, Default)]
pub struct Page {
    title: String,
    lead: String,
    body: Vec<Markup>,
}

/// A cell of a table: what is shown, and what it is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    text: String,
    sort: Option<f64>,
}

impl Cell {
    /// Words.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), sort: None }
    }

    /// A number, shown with so many decimals; nothing where it is not known.
    pub fn number(value: Option<f64>, decimals: usize) -> Cell {
        Cell {
            text: value.map_or("–".into(), |v| format!("{v:.decimals$}")),
            sort: Some(value.unwrap_or(f64::INFINITY)),
        }
    }

    /// A number, shown with three digits and an exponent; nothing where it is not known.
    pub fn scientific(value: Option<f64>) -> Cell {
        Cell { text: value.map_or("–".into(), |v| format!("{v:.3e}")), sort: Some(value.unwrap_or(f64::INFINITY)) }
    }
}

/// A table; its readers sort it by clicking on a column's head.
#[derive(Clone, Debug, Default)]
pub struct Table {
    id: String,
    heads: Vec<String>,
    long: bool,
    rows: Vec<(Option<&'static str>, Vec<Cell>)>,
}

impl Table {
    /// An empty table of these columns, under an id that is unique in its page.
    pub fn new(id: &str, heads: &[&str]) -> Table {
        Table { id: id.into(), heads: heads.iter().map(|h| h.to_string()).collect(), long: false, rows: Vec::new() }
    }

    /// The same table with room for long words in the first column.
    pub fn long(self) -> Table {
        Table { long: true, ..self }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push((None, cells));
    }

    /// Adds a row that stands out.
    pub fn marked_row(&mut self, cells: Vec<Cell>) {
        self.rows.push((Some("marked"), cells));
    }
}

impl Page {
    /// An empty page.
    pub fn new(title: impl Into<String>) -> Page {
        Page { title: title.into(), ..Page::default() }
    }

    /// The paragraph below the title.
    pub fn lead(self, text: impl Into<String>) -> Page {
        Page { lead: text.into(), ..self }
    }

    /// A heading.
    pub fn heading(mut self, text: &str) -> Page {
        self.body.push(html! { h2 { (text) } });
        self
    }

    /// A paragraph.
    pub fn paragraph(mut self, text: &str) -> Page {
        self.body.push(html! { p { (text) } });
        self
    }

    /// Few facts that matter most, large: what each is called, its value, and a remark.
    pub fn facts(mut self, facts: &[(&str, String, String)]) -> Page {
        self.body.push(html! {
            div.facts {
                @for (name, value, remark) in facts {
                    div.fact { div.name { (name) } div.value { (value) } div.remark { (remark) } }
                }
            }
        });
        self
    }

    /// A plot under a heading of its own, with a sentence on how to read it.
    pub fn figure(mut self, title: &str, caption: &str, plot: &Plot) -> Page {
        self.body.push(html! {
            figure {
                figcaption { strong { (title) } " " (caption) }
                (PreEscaped(plot.svg()))
            }
        });
        self
    }

    /// A table.
    pub fn table(mut self, table: &Table) -> Page {
        self.body.push(html! {
            div.wide {
                table.sortable.long[table.long] id=(table.id) {
                    thead { tr { @for head in &table.heads { th scope="col" { button type="button" { (head) } } } } }
                    tbody {
                        @for (class, row) in &table.rows {
                            tr class=[class] {
                                @for cell in row {
                                    td class=[cell.sort.map(|_| "number")] data-sort=[cell.sort] { (cell.text) }
                                }
                            }
                        }
                    }
                }
            }
        });
        self
    }

    /// Names with values, such as settings.
    pub fn pairs<N: AsRef<str>, V: AsRef<str>>(mut self, pairs: impl IntoIterator<Item = (N, V)>) -> Page {
        self.body.push(html! {
            dl { @for (name, value) in pairs { dt { (name.as_ref()) } dd { (value.as_ref()) } } }
        });
        self
    }

    /// The file.
    pub fn render(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) }
                    style { (PreEscaped(style())) }
                }
                body {
                    main {
                        h1 { (self.title) }
                        @if !self.lead.is_empty() { p.lead { (self.lead) } }
                        @for part in &self.body { (part) }
                        p.error hidden { }
                    }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        };
        page.into_string()
    }
}

/// The colours of plots are attributes of their marks: in the dark, rules on these attributes give them others.
fn style() -> String {
    let dark: String = [INK, GRID]
        .iter()
        .chain(&PALETTE)
        .map(|(light, dark)| {
            let light = hex(*light);
            format!("[fill=\"{light}\"] {{ fill: {dark}; }} [stroke=\"{light}\"] {{ stroke: {dark}; }}\n")
        })
        .collect();
    format!("{STYLE}@media (prefers-color-scheme: dark) {{\n{dark}}}\n")
}

const STYLE: &str = "
:root { color-scheme: light dark; --paper: #fbf8f3; --card: #ffffff; --ink: #2b2723; --soft: #6d655c; --line: #e6e0d8; --warm: #b4552d; --tint: #fbeee4; }
@media (prefers-color-scheme: dark) {
:root { --paper: #1c1a18; --card: #262320; --ink: #ece6dd; --soft: #a89f94; --line: #3a3733; --warm: #f2925f; --tint: #3a2c22; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; }
.lead { color: var(--soft); font-size: 1.08rem; margin: 0 0 1.5rem; max-width: 46rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .9rem; margin: 1.5rem 0; }
.fact { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; padding: .9rem 1rem; }
.fact .name { color: var(--soft); font-size: .85rem; }
.fact .value { font-size: 1.4rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.fact .remark { color: var(--soft); font-size: .82rem; overflow-wrap: anywhere; }
figure { margin: 1.5rem 0; background: var(--card); border: 1px solid var(--line); border-radius: .7rem; padding: 1rem 1rem .4rem; }
figcaption { color: var(--soft); font-size: .92rem; margin: 0 .3rem .4rem; }
figcaption strong { color: var(--ink); font-size: 1rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; }
.titles circle:hover { fill: var(--warm); fill-opacity: .25; }
.wide { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .7rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .45rem .8rem; border-bottom: 1px solid var(--line); vertical-align: top; }
tbody tr:last-child td { border-bottom: 0; }
th button { all: unset; cursor: pointer; font-weight: 600; color: var(--soft); }
th button:hover, th button:focus-visible { color: var(--warm); }
td:first-child { min-width: 9rem; }
table.long td:first-child { min-width: 21rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.marked td { background: var(--tint); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; font-size: .92rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
.error { color: #fff; background: #a3271f; border-radius: .5rem; padding: .6rem .9rem; }
@media print { body { background: none; } figure, .fact, .wide { break-inside: avoid; } }
";

/// Sorting, and a sign that it works: pages are opened in tests. What fails is shown, not swallowed.
const SCRIPT: &str = "
window.addEventListener('error', event => {
  const box = document.querySelector('p.error');
  box.textContent = event.message;
  box.hidden = false;
});
for (const table of document.querySelectorAll('table.sortable')) {
  table.querySelectorAll('th button').forEach((button, column) => {
    let down = false;
    button.addEventListener('click', () => {
      const key = row => {
        const cell = row.cells[column];
        return 'sort' in cell.dataset ? [0, cell.dataset.sort === 'inf' ? Infinity : Number(cell.dataset.sort)] : [1, cell.textContent];
      };
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [ka, va] = key(a), [kb, vb] = key(b);
        const order = ka !== kb ? ka - kb : va < vb ? -1 : va > vb ? 1 : 0;
        return down ? -order : order;
      });
      down = !down;
      table.tBodies[0].append(...rows);
    });
  });
}
document.body.dataset.ready = 'yes';
";

#[cfg(test)]
mod tests {
    use super::{super::*, *};

    #[test]
    fn a_page_holds_all_it_shows() {
        let mut table = Table::new("t", &["name", "value"]);
        table.row(vec![Cell::text("<a>"), Cell::number(Some(1.25), 1)]);
        table.marked_row(vec![Cell::text("b"), Cell::number(None, 1)]);
        let plot = Plot::new("x", "y").scatter(Series::new("s", vec![Point::new(1.0, 2.0)]));
        let page = Page::new("Title & more")
            .lead("Lead.")
            .heading("Heading")
            .paragraph("Words.")
            .facts(&[("fact", "1".into(), "remark".into())])
            .figure("Figure", "How to read it.", &plot)
            .table(&table)
            .pairs([("key", "value")])
            .render();
        assert!(page.contains("Title &amp; more") && page.contains("&lt;a&gt;"), "{page}");
        assert!(page.contains("class=\"marked\"") && page.contains("data-sort=\"inf\""), "{page}");
        for reference in ["href", "src=", "url(", "@import", "http:", "https:"] {
            let found: Vec<&str> = page.lines().filter(|l| l.contains(reference) && !l.contains("xmlns")).collect();
            assert!(found.is_empty(), "{reference}: {found:?}");
        }
    }
}
