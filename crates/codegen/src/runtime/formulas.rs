//! Numbers that follow from extents, as formulas.
//!
//! What a program does at one size is full of numbers that follow from its extents: how often loops run, how far rows lie apart, how long
//! buffers are. Looked at in many sizes, each such number is a row of values, and a formula is what gives that row from those of the
//! extents: sums, products, quotients and remainders, which is what the arithmetic of shapes and of tiles consists of. Simple ones are
//! preferred; whoever uses them compares with further sizes ([`Formulas::values`]). What none is found for is a [`Table`].

use hashbrown::{HashMap, HashSet};

/// How a number follows from those before it.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) enum Formula {
    /// It is always the same.
    Known(i64),
    /// The extent of that number.
    Extent(usize),
    /// `a + b`.
    Sum(usize, usize),
    /// `a * b`.
    Product(usize, usize),
    /// `floor(a / d)`.
    Quotient(usize, i64),
    /// `a - d * floor(a / d)`.
    Remainder(usize, i64),
    /// The less of two.
    Least(usize, usize),
    /// The greater of two.
    Greatest(usize, usize),
    /// The bits of a float of 64 bits that is that number.
    Float(usize),
    /// The bits of the reciprocal of that number, rounded to 32 bits where `true`.
    Reciprocal(usize, bool),
    /// What the table of that number says.
    Table(usize),
}

/// An extent by which a table is looked up.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct TableAxis {
    /// Its number.
    pub extent: usize,
    /// The least.
    pub least: i64,
    /// How far the extents are apart.
    pub apart: i64,
    /// By how many values the next one is further on.
    pub by: i64,
}

impl TableAxis {
    fn at(&self, n: i64) -> i64 {
        (n - self.least) / self.apart * self.by
    }
}

/// A number by extents, of which it depends on some.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    /// The extents that tell its values apart.
    pub axes: Vec<TableAxis>,
    /// The values; 0 where no size was looked at.
    pub values: Vec<i64>,
}

/// Formulas, each of which may use those before it, and what they give at the sizes that were looked at.
#[derive(Clone, Debug)]
pub(super) struct Formulas {
    all: Vec<Formula>,
    rows: Vec<Vec<i64>>,
    by_row: HashMap<Vec<i64>, usize>,
    atoms: HashMap<usize, HashMap<u64, Atom>>,
    /// Products that were made to be looked at.
    wide: HashSet<usize>,
    tables: Vec<Table>,
}

/// What is made of one number alone.
#[derive(Copy, Clone, Debug)]
enum Atom {
    Same,
    /// `floor((x + b) / d)`.
    Quotient(i64, i64),
    /// `x mod d`.
    Remainder(i64),
    /// `floor((x mod d) / e)`.
    Rest(i64, i64),
    /// `(x mod d) mod e`.
    RestOfRest(i64, i64),
    /// `x - (x mod d) mod e`: where pieces of `e` end.
    End(i64, i64),
    /// `floor((x mod d) / e) mod 2`: whether there is a piece of `e` after pieces of twice that.
    Piece(i64, i64),
    /// `max(floor((x + b) / d) - c, 0)`: tiles but for those at edges.
    Inner(i64, i64, i64),
    /// `min` of that and 1: whether there are any.
    Any(i64, i64, i64),
    /// `min(x, n)`.
    Least(i64),
    /// `max(x, n)`.
    Greatest(i64),
}

/// Tiles and strides are at most so large.
const LARGEST_TILE: i64 = 64;
/// Or one of these.
const LARGER_TILES: [i64; 10] = [72, 80, 96, 112, 128, 192, 256, 384, 512, 1024];
/// Windows reach so far over an edge.
const EDGE: i64 = 8;
/// So many factors are taken out of a number one after another.
const FACTORS: usize = 2;
/// Numbers that others are made of: so many at most are combined.
const COMBINED: usize = 7;

impl Formulas {
    /// For extents that took these values at the sizes looked at: a row for each.
    pub(super) fn new(extents: &[Vec<i64>]) -> Formulas {
        let mut f = Formulas::none();
        for (n, row) in extents.iter().enumerate() {
            // Two extents that were the same at all sizes are one.
            if !f.by_row.contains_key(row) {
                f.by_row.insert(row.clone(), f.all.len());
                f.all.push(Formula::Extent(n));
                f.rows.push(row.clone());
            }
        }
        f
    }

    fn none() -> Formulas {
        let (by_row, atoms, wide) = (HashMap::new(), HashMap::new(), HashSet::new());
        Formulas { all: vec![], rows: vec![], by_row, atoms, wide, tables: vec![] }
    }

    pub(super) fn all(&self) -> &[Formula] {
        &self.all
    }

    pub(super) fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The number with these values at the sizes looked at, which a table has: [`Formulas::fill`] gives that for all sizes.
    pub(super) fn tabled(&mut self, row: &[i64]) -> usize {
        if let Some(&n) = self.by_row.get(row).filter(|n| matches!(self.all[**n], Formula::Table(_))) {
            return n;
        }
        let n = self.all.len();
        self.by_row.insert(row.to_vec(), n);
        self.all.push(Formula::Table(self.tables.len()));
        self.rows.push(row.to_vec());
        self.tables.push(Table::default());
        n
    }

    /// Gives a number's table: extents of sizes, and its value at each.
    pub(super) fn fill(&mut self, number: usize, sizes: &[&[i64]], values: &[i64]) {
        if let Formula::Table(t) = self.all[number] {
            self.tables[t] = Table::of(sizes, values);
        }
    }

    /// The value of a number at the size that was looked at first.
    pub(super) fn first(&self, number: usize) -> i64 {
        self.rows[number].first().copied().unwrap_or(0)
    }

    /// Whether a number is the same at all sizes.
    pub(super) fn is_known(&self, number: usize) -> bool {
        matches!(self.all[number], Formula::Known(_))
    }

    /// The number that is the same at all sizes.
    pub(super) fn constant(&mut self, n: i64) -> usize {
        let samples = self.rows.first().map_or(1, Vec::len);
        let row = vec![n; samples];
        *self.by_row.entry(row.clone()).or_insert_with(|| {
            self.all.push(Formula::Known(n));
            self.rows.push(row);
            self.all.len() - 1
        })
    }

    /// Only the formulas that these numbers need; the numbers become their places among those.
    pub(super) fn only(&mut self, numbers: &mut [&mut usize]) {
        let mut needed = vec![false; self.all.len()];
        numbers.iter().for_each(|n| needed[**n] = true);
        for n in (0..self.all.len()).rev() {
            if needed[n] {
                self.all[n].operands().into_iter().flatten().for_each(|o| needed[o] = true);
            }
        }
        let mut place = vec![usize::MAX; self.all.len()];
        let mut kept = Formulas::none();
        for n in 0..self.all.len() {
            if needed[n] {
                place[n] = kept.all.len();
                let mut formula = self.all[n].with_operands(|o| place[o]);
                if let Formula::Table(t) = &mut formula {
                    kept.tables.push(std::mem::take(&mut self.tables[*t]));
                    *t = kept.tables.len() - 1;
                }
                kept.all.push(formula);
                kept.rows.push(std::mem::take(&mut self.rows[n]));
            }
        }
        numbers.iter_mut().for_each(|n| **n = place[**n]);
        *self = kept;
    }

    /// What all formulas give for these extents; none of a number that does not fit.
    pub(super) fn values(&self, extents: &[i64]) -> Vec<Option<i64>> {
        let mut values: Vec<Option<i64>> = Vec::with_capacity(self.all.len());
        for f in &self.all {
            values.push(match *f {
                Formula::Extent(n) => extents.get(n).copied(),
                Formula::Table(t) => self.tables[t].value(extents),
                f if f.operands().into_iter().flatten().any(|o| values[o].is_none()) => None,
                f => f.applied(|n| values[n].unwrap_or(0)),
            });
        }
        values
    }

    /// The number that has these values; a new formula where one is found, of `near` numbers above all.
    pub(super) fn find(&mut self, row: &[i64], near: &[usize]) -> Option<usize> {
        if let Some(&n) = self.by_row.get(row) {
            return Some(n);
        }
        if row.iter().all(|v| *v == row[0]) {
            return Some(self.constant(row[0]));
        }
        let varying: Vec<usize> = near.iter().copied().filter(|&n| !self.is_known(n)).collect();
        if let Some(n) = self.simple(row, &varying) {
            return Some(n);
        }
        let few = &varying[..varying.len().min(COMBINED)];
        if let Some(n) = self.polynomial(row, few) {
            return Some(n);
        }
        // What runs over several axes at once is a product of extents, of which tiles are then cut.
        let mut wide = varying.clone();
        for (i, &a) in few.iter().enumerate() {
            for &b in &few[i..] {
                let Some(ab) = self.push(Formula::Product(a, b)) else { continue };
                wide.push(ab);
                wide.extend(few.iter().filter(|&&c| c > b).filter_map(|&c| self.push(Formula::Product(ab, c))));
            }
        }
        self.wide.extend(wide[varying.len()..].iter().filter(|n| !self.atoms.contains_key(*n)));
        if let Some(n) = self.of_one(row, &wide) {
            return Some(n);
        }
        self.float(row, near)
    }

    fn simple(&mut self, row: &[i64], near: &[usize]) -> Option<usize> {
        if let Some(&n) = self.by_row.get(row) {
            return Some(n);
        }
        self.of_one(row, near).or_else(|| self.product(row, near, FACTORS))
    }

    /// A number and whatever of it is new: where it gives a row that another gives, that one.
    fn push(&mut self, f: Formula) -> Option<usize> {
        let samples = self.rows.first().map_or(1, Vec::len);
        let at = |i: usize| f.applied(|n| self.rows[n][i]);
        let row: Vec<i64> = (0..samples).map(at).collect::<Option<_>>()?;
        if let Some(&n) = self.by_row.get(&row) {
            return Some(n);
        }
        let n = self.all.len();
        self.by_row.insert(row.clone(), n);
        self.all.push(f);
        self.rows.push(row);
        Some(n)
    }

    /// `c * atom(x) + k` or `floor` of it, for a near number x.
    fn of_one(&mut self, row: &[i64], near: &[usize]) -> Option<usize> {
        let (key, step) = direction(row)?;
        for &x in near {
            if !self.atoms.contains_key(&x) {
                // Products of several extents are looked at less closely: there are many.
                let atoms = atoms(&self.rows[x], !self.wide.contains(&x));
                self.atoms.insert(x, atoms);
            }
            let Some(&atom) = self.atoms.get(&x).and_then(|a| a.get(&key)) else { continue };
            let Some(a) = self.atom(x, atom) else { continue };
            let Some((_, own)) = direction(&self.rows[a]) else { continue };
            let made = match (step % own, own % step) {
                (0, _) => {
                    let scaled = self.scaled(a, step / own);
                    let at = scaled.map(|s| self.rows[s][0]);
                    scaled.zip(at).and_then(|(s, at)| self.plus(s, row[0] - at))
                }
                (_, 0) => {
                    let at = self.rows[a][0];
                    let moved = self.plus(a, -at);
                    let part = moved.and_then(|m| self.push(Formula::Quotient(m, (own / step).abs())));
                    let part = part.and_then(|p| self.scaled(p, (own / step).signum()));
                    part.and_then(|p| self.plus(p, row[0]))
                }
                _ => None,
            };
            if let Some(n) = made.filter(|&n| self.rows[n] == row) {
                return Some(n);
            }
        }
        None
    }

    fn scaled(&mut self, a: usize, by: i64) -> Option<usize> {
        if by == 1 {
            return Some(a);
        }
        let by = self.constant(by);
        self.push(Formula::Product(a, by))
    }

    fn plus(&mut self, a: usize, k: i64) -> Option<usize> {
        if k == 0 {
            return Some(a);
        }
        let k = self.constant(k);
        self.push(Formula::Sum(a, k))
    }

    fn atom(&mut self, x: usize, atom: Atom) -> Option<usize> {
        match atom {
            Atom::Same => Some(x),
            Atom::Quotient(b, d) => {
                let moved = self.plus(x, b)?;
                self.push(Formula::Quotient(moved, d))
            }
            Atom::Remainder(d) => self.push(Formula::Remainder(x, d)),
            Atom::Rest(d, e) => {
                let rest = self.push(Formula::Remainder(x, d))?;
                self.push(Formula::Quotient(rest, e))
            }
            Atom::RestOfRest(d, e) => {
                let rest = self.push(Formula::Remainder(x, d))?;
                self.push(Formula::Remainder(rest, e))
            }
            Atom::End(d, e) => {
                let rest = self.atom(x, Atom::RestOfRest(d, e))?;
                let less = self.scaled(rest, -1)?;
                self.push(Formula::Sum(x, less))
            }
            Atom::Piece(d, e) => {
                let rest = self.push(Formula::Remainder(x, d))?;
                let pieces = self.push(Formula::Quotient(rest, e))?;
                self.push(Formula::Remainder(pieces, 2))
            }
            Atom::Inner(b, d, c) => {
                let moved = self.plus(x, b)?;
                let tiles = self.push(Formula::Quotient(moved, d))?;
                let (left, none) = (self.plus(tiles, -c)?, self.constant(0));
                self.push(Formula::Greatest(left, none))
            }
            Atom::Any(b, d, c) => {
                let (left, one) = (self.atom(x, Atom::Inner(b, d, c))?, self.constant(1));
                self.push(Formula::Least(left, one))
            }
            Atom::Least(n) => {
                let n = self.constant(n);
                self.push(Formula::Least(x, n))
            }
            Atom::Greatest(n) => {
                let n = self.constant(n);
                self.push(Formula::Greatest(x, n))
            }
        }
    }

    /// A product of near numbers, or of what lies near them, with something simple.
    fn product(&mut self, row: &[i64], near: &[usize], factors: usize) -> Option<usize> {
        if factors == 0 {
            return None;
        }
        for moved in 0..=2 * EDGE {
            let by = if moved % 2 == 0 { moved / 2 } else { -(moved + 1) / 2 };
            for (i, &x) in near.iter().enumerate() {
                let divides = |(v, x): (&i64, &i64)| x + by != 0 && v % (x + by) == 0;
                if !row.iter().zip(&self.rows[x]).all(divides) {
                    continue;
                }
                let left: Vec<i64> = row.iter().zip(&self.rows[x]).map(|(v, x)| v / (x + by)).collect();
                // Factors in the order of `near`: others have been tried.
                let rest = match () {
                    _ if left.iter().all(|v| *v == left[0]) => Some(self.constant(left[0])),
                    _ => match self.by_row.get(&left) {
                        Some(&n) => Some(n),
                        None => self.of_one(&left, near).or_else(|| self.product(&left, &near[i..], factors - 1)),
                    },
                };
                if let Some(rest) = rest {
                    let factor = self.plus(x, by)?;
                    return self.push(Formula::Product(factor, rest));
                }
            }
        }
        None
    }

    /// A sum of products of near numbers, each at most once.
    fn polynomial(&mut self, row: &[i64], near: &[usize]) -> Option<usize> {
        const DEGREE: u32 = 4;
        let mut monomials: Vec<u32> = (0..1u32 << near.len()).filter(|s| s.count_ones() <= DEGREE).collect();
        monomials.sort_by_key(|s| (s.count_ones(), *s));
        let samples = row.len();
        let columns: Vec<Vec<i64>> = monomials
            .iter()
            .map(|s| {
                let factors: Vec<usize> = (0..near.len()).filter(|i| s >> i & 1 == 1).map(|i| near[i]).collect();
                (0..samples)
                    .map(|k| factors.iter().try_fold(1i64, |p, &n| p.checked_mul(self.rows[n][k])))
                    .collect::<Option<Vec<i64>>>()
            })
            .collect::<Option<_>>()?;
        let coefficients = modular::solve(&columns, row)?;
        let mut sum: Option<usize> = None;
        for (&set, &c) in monomials.iter().zip(&coefficients).filter(|(_, c)| **c != 0) {
            let mut term: Option<usize> = None;
            for i in (0..near.len()).filter(|i| set >> i & 1 == 1) {
                term = Some(match term {
                    None => near[i],
                    Some(t) => self.push(Formula::Product(t, near[i]))?,
                });
            }
            let term = match term {
                None => self.constant(c),
                Some(t) => self.scaled(t, c)?,
            };
            sum = Some(match sum {
                None => term,
                Some(s) => self.push(Formula::Sum(s, term))?,
            });
        }
        sum.filter(|&n| self.rows[n] == row)
    }

    /// The bits of a float that is a number, or one by a number.
    fn float(&mut self, row: &[i64], near: &[usize]) -> Option<usize> {
        let floats: Vec<f64> = row.iter().map(|&v| f64::from_bits(v as u64)).collect();
        if !floats.iter().all(|f| f.is_normal()) {
            return None;
        }
        let whole = |f: f64| (f.fract() == 0.0 && f.abs() < 2f64.powi(53)).then_some(f as i64);
        if let Some(numbers) = floats.iter().map(|&f| whole(f)).collect::<Option<Vec<i64>>>() {
            let n = self.find(&numbers, near)?;
            return self.push(Formula::Float(n)).filter(|&n| self.rows[n] == row);
        }
        let numbers: Vec<i64> = floats.iter().map(|&f| (1.0 / f).round() as i64).collect();
        if numbers.contains(&0) {
            return None;
        }
        let n = self.find(&numbers, near)?;
        [false, true].into_iter().find_map(|short| {
            let made = self.push(Formula::Reciprocal(n, short));
            made.filter(|&n| self.rows[n] == row)
        })
    }
}

impl Formula {
    fn operands(&self) -> [Option<usize>; 2] {
        match *self {
            Formula::Known(_) | Formula::Extent(_) | Formula::Table(_) => [None, None],
            Formula::Sum(a, b) | Formula::Product(a, b) | Formula::Least(a, b) | Formula::Greatest(a, b) => {
                [Some(a), Some(b)]
            }
            Formula::Quotient(a, _) | Formula::Remainder(a, _) | Formula::Float(a) | Formula::Reciprocal(a, _) => {
                [Some(a), None]
            }
        }
    }

    fn with_operands(self, place: impl Fn(usize) -> usize) -> Formula {
        match self {
            Formula::Known(_) | Formula::Extent(_) | Formula::Table(_) => self,
            Formula::Sum(a, b) => Formula::Sum(place(a), place(b)),
            Formula::Product(a, b) => Formula::Product(place(a), place(b)),
            Formula::Least(a, b) => Formula::Least(place(a), place(b)),
            Formula::Greatest(a, b) => Formula::Greatest(place(a), place(b)),
            Formula::Quotient(a, d) => Formula::Quotient(place(a), d),
            Formula::Remainder(a, d) => Formula::Remainder(place(a), d),
            Formula::Float(a) => Formula::Float(place(a)),
            Formula::Reciprocal(a, short) => Formula::Reciprocal(place(a), short),
        }
    }

    /// The value of what follows from other numbers.
    fn applied(&self, of: impl Fn(usize) -> i64) -> Option<i64> {
        match *self {
            Formula::Known(n) => Some(n),
            Formula::Extent(_) | Formula::Table(_) => None,
            Formula::Sum(a, b) => of(a).checked_add(of(b)),
            Formula::Product(a, b) => of(a).checked_mul(of(b)),
            Formula::Quotient(a, d) => Some(of(a).div_euclid(d)),
            Formula::Remainder(a, d) => Some(of(a).rem_euclid(d)),
            Formula::Least(a, b) => Some(of(a).min(of(b))),
            Formula::Greatest(a, b) => Some(of(a).max(of(b))),
            Formula::Float(a) => Some((of(a) as f64).to_bits() as i64),
            Formula::Reciprocal(a, false) => Some((1.0 / of(a) as f64).to_bits() as i64),
            Formula::Reciprocal(a, true) => Some(f64::from(1.0f32 / of(a) as f32).to_bits() as i64),
        }
    }
}

impl Table {
    /// Of these values at sizes with these extents: by as few of the extents as tell them apart.
    fn of(sizes: &[&[i64]], values: &[i64]) -> Table {
        let extents = sizes.first().map_or(0, |s| s.len());
        let bound = |k: usize, greatest: bool| {
            let all = sizes.iter().map(|s| s[k]);
            if greatest { all.max() } else { all.min() }.unwrap_or(0)
        };
        let spans: Vec<(i64, i64)> = (0..extents).map(|k| (bound(k, false), bound(k, true))).collect();
        let apart = |k: usize| sizes.iter().map(|s| s[k] - spans[k].0).fold(0, gcd).max(1);
        let apart: Vec<i64> = (0..extents).map(apart).collect();
        let mut needed: Vec<usize> = (0..extents).collect();
        let axes = |needed: &[usize]| -> (Vec<TableAxis>, i64) {
            let mut by = 1;
            let axis = |&k: &usize| {
                let axis = TableAxis { extent: k, least: spans[k].0, apart: apart[k], by };
                by *= (spans[k].1 - spans[k].0) / apart[k] + 1;
                axis
            };
            (needed.iter().map(axis).collect(), by)
        };
        // The table by these extents, where they tell all values apart.
        let by = |needed: &[usize]| -> Option<Table> {
            let (axes, count) = axes(needed);
            let mut found: Vec<Option<i64>> = vec![None; count as usize];
            for (size, &v) in sizes.iter().zip(values) {
                let at: i64 = axes.iter().map(|a| a.at(size[a.extent])).sum();
                if *found[at as usize].get_or_insert(v) != v {
                    return None;
                }
            }
            Some(Table { axes, values: found.into_iter().map(|v| v.unwrap_or(0)).collect() })
        };
        let mut table = by(&needed).unwrap_or_default();
        for k in 0..extents {
            let without: Vec<usize> = needed.iter().copied().filter(|&n| n != k).collect();
            if let Some(less) = by(&without) {
                (table, needed) = (less, without);
            }
        }
        table
    }

    fn value(&self, extents: &[i64]) -> Option<i64> {
        let at = self.axes.iter().map(|a| Some(a.at(*extents.get(a.extent)?))).sum::<Option<i64>>();
        at.and_then(|at| self.values.get(usize::try_from(at).ok()?).copied())
    }
}

/// What rows have in common that are multiples of each other but for what is added: a key; and by how much this one is one.
fn direction(row: &[i64]) -> Option<(u64, i64)> {
    let first = *row.first()?;
    let mut common: i64 = 0;
    for v in row {
        common = gcd(common, v.checked_sub(first)?.checked_abs()?);
    }
    let lead = row.iter().map(|v| v - first).find(|d| *d != 0)?;
    let step = common * lead.signum();
    let mut key: u64 = 0xcbf2_9ce4_8422_2325;
    for v in row {
        key = (key ^ ((v - first) / step) as u64).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
    Some((key, step))
}

fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// What can be made of one row alone, by direction; the simplest of each.
fn atoms(row: &[i64], all: bool) -> HashMap<u64, Atom> {
    let mut found = HashMap::new();
    let mut note = |atom: Atom, value: &dyn Fn(i64) -> i64| {
        let values: Vec<i64> = row.iter().map(|&x| value(x)).collect();
        if let Some((key, _)) = direction(&values) {
            found.entry(key).or_insert(atom);
        }
    };
    note(Atom::Same, &|x| x);
    let tiles = || (2..=LARGEST_TILE).chain(LARGER_TILES);
    for d in tiles() {
        note(Atom::Quotient(0, d), &|x| x.div_euclid(d));
    }
    for d in tiles() {
        note(Atom::Quotient(d - 1, d), &|x| (x + d - 1).div_euclid(d));
        note(Atom::Remainder(d), &|x| x.rem_euclid(d));
    }
    if !all {
        return found;
    }
    for d in 2..=EDGE {
        (-EDGE..=EDGE).for_each(|b| note(Atom::Quotient(b, d), &|x| (x + b).div_euclid(d)));
    }
    for d in tiles() {
        for e in (2..d).filter(|e| i64::count_ones(*e) == 1 || d % e == 0) {
            note(Atom::Rest(d, e), &|x| x.rem_euclid(d) / e);
            note(Atom::RestOfRest(d, e), &|x| x.rem_euclid(d) % e);
            note(Atom::End(d, e), &|x| x - x.rem_euclid(d) % e);
        }
        for e in (0..10).map(|p| 1 << p).filter(|e| *e < d) {
            note(Atom::Piece(d, e), &|x| x.rem_euclid(d) / e % 2);
        }
    }
    for (b, d) in tiles().flat_map(|d| [(0, d), (d - 1, d)]).chain((-EDGE..=EDGE).map(|b| (b, 1))) {
        for c in 0..=2 {
            let inner = |x: i64| ((x + b).div_euclid(d) - c).max(0);
            note(Atom::Inner(b, d, c), &inner);
            note(Atom::Any(b, d, c), &|x| inner(x).min(1));
        }
    }
    for n in (1..=EDGE).chain((4..10).map(|p| 1 << p)) {
        note(Atom::Least(n), &|x| x.min(n));
        note(Atom::Greatest(n), &|x| x.max(n));
    }
    found
}

/// Linear equations over the integers modulo a prime: solutions that are small are those over the integers.
mod modular {
    const P: i128 = (1 << 61) - 1;

    fn inverse(a: i128) -> i128 {
        let (mut result, mut base, mut power) = (1, a, P - 2);
        while power > 0 {
            if power & 1 == 1 {
                result = result * base % P;
            }
            base = base * base % P;
            power >>= 1;
        }
        result
    }

    /// Factors by which columns add up to a target: those of columns that are not needed are 0.
    pub(super) fn solve(columns: &[Vec<i64>], target: &[i64]) -> Option<Vec<i64>> {
        let mut rows: Vec<Vec<i128>> = (0..target.len())
            .map(|k| columns.iter().map(|c| c[k]).chain([target[k]]).map(|v| i128::from(v).rem_euclid(P)).collect())
            .collect();
        let (mut pivots, mut done) = (Vec::new(), 0);
        for c in 0..columns.len() {
            let Some(pivot) = (done..rows.len()).find(|&r| rows[r][c] != 0) else { continue };
            rows.swap(done, pivot);
            let by = inverse(rows[done][c]);
            rows[done][c..].iter_mut().for_each(|v| *v = *v * by % P);
            let (own, own_row) = (done, rows[done].clone());
            for (r, row) in rows.iter_mut().enumerate() {
                let by = row[c];
                if r != own && by != 0 {
                    row[c..].iter_mut().zip(&own_row[c..]).for_each(|(v, o)| *v = (*v - by * o).rem_euclid(P));
                }
            }
            pivots.push(c);
            done += 1;
        }
        if rows[done..].iter().any(|r| r[columns.len()] != 0) {
            return None;
        }
        const SMALL: i128 = 1 << 40;
        let mut found = vec![0; columns.len()];
        for (row, &c) in rows.iter().zip(&pivots) {
            let v = row[columns.len()];
            found[c] = match v {
                v if v < SMALL => v as i64,
                v if v > P - SMALL => (v - P) as i64,
                _ => return None,
            };
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three extents at many sizes.
    fn extents() -> Vec<Vec<i64>> {
        let sizes = |k: i64| (1..200i64).map(move |i| (i * (7 + 6 * k) + i * i % (11 + k)) % 211 + 1).collect();
        (0..3).map(sizes).collect()
    }

    fn found(f: impl Fn(i64, i64, i64) -> i64) {
        let rows = extents();
        let row: Vec<i64> = (0..rows[0].len()).map(|i| f(rows[0][i], rows[1][i], rows[2][i])).collect();
        let mut formulas = Formulas::new(&rows);
        let n = formulas.find(&row, &[0, 1, 2]).expect("there is a formula");
        for (a, b, c) in [(1, 1, 1), (5, 1000, 33), (640, 480, 7), (17, 2, 4096)] {
            assert_eq!(formulas.values(&[a, b, c])[n], Some(f(a, b, c)), "{a} {b} {c}");
        }
    }

    #[test]
    fn shapes_and_tiles() {
        found(|a, _, _| 3 * a + 4);
        found(|a, b, _| 4 * a * b * 64);
        found(|_, b, _| (b - 1) / 2 + 1);
        found(|a, b, c| a * ((b + 1) / 2) * c * 64);
        found(|_, b, c| (b + 2) * (c + 2) * 16);
        found(|a, b, _| (a * b) / 14);
        found(|a, b, c| a * b * c * 3 + b * c + 7 * a);
        found(|_, b, _| b - b % 14 + b % 14 / 8 * 8);
        found(|a, _, _| a.min(4));
    }

    #[test]
    fn floats() {
        found(|_, b, c| (1.0 / (b * c) as f64).to_bits() as i64);
        found(|_, b, _| f64::from(1.0f32 / b as f32).to_bits() as i64);
        found(|a, b, _| ((a * b) as f64).to_bits() as i64);
    }

    #[test]
    fn what_follows_from_nothing_known_has_none() {
        let rows = extents();
        let row: Vec<i64> = (0..rows[0].len() as i64).map(|i| i * 7919 % 1009).collect();
        assert_eq!(Formulas::new(&rows).find(&row, &[0, 1, 2]), None);
    }

    #[test]
    fn tables_are_by_what_tells_values_apart() {
        let sizes: Vec<Vec<i64>> = (0..60).map(|i| vec![2 + i % 3, 1 + i / 3 % 4, 7 + i / 12]).collect();
        let sizes: Vec<&[i64]> = sizes.iter().map(|s| &s[..]).collect();
        let of = |f: &dyn Fn(&[i64]) -> i64| -> Table {
            let values: Vec<i64> = sizes.iter().map(|s| f(s)).collect();
            let table = Table::of(&sizes, &values);
            sizes.iter().zip(&values).for_each(|(s, &v)| assert_eq!(table.value(s), Some(v)));
            table
        };
        let axis = |extent, least, apart, by| TableAxis { extent, least, apart, by };
        assert_eq!(of(&|s| s[1] * 37 % 11).axes, [axis(1, 1, 1, 1)]);
        assert_eq!(of(&|s| (s[0] * 5 + s[2] * 37) % 23).axes, [axis(0, 2, 1, 1), axis(2, 7, 1, 3)]);
        assert_eq!(of(&|_| 5).values, [5]);
        assert_eq!(of(&|s| s[0] * 100 + s[1] * 10 + s[2]).values.len(), 60);
        assert_eq!(of(&|s| s[1]).value(&[2, 5, 7]), None);
        // Extents in steps take no more room than there are of them.
        let table = Table::of(&[&[64, 1], &[96, 2], &[160, 1]], &[3, 4, 5]);
        assert_eq!((&table.axes[..], &table.values[..]), (&[axis(0, 64, 32, 1)][..], &[3, 4, 0, 5][..]));
    }
}
