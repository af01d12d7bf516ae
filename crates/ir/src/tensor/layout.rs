//! Layouts of tensors: which axis is which, and which are split into blocks.

use std::{fmt, str::FromStr};

/// One axis of a [`Layout`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LayoutAxis {
    /// What the axis means: an upper-case letter, as `C` for channels.
    pub primal: char,
    /// `None` for the axis itself (or, where it is split, its blocks); the block's extent for the axis within a block.
    pub block: Option<i64>,
}

/// The meaning of a tensor's axes, outermost first, in TVM's notation: `NCHW` names four whole axes; in `NCHW8c` the
/// channels are split into blocks of 8, `C` counts blocks and `8c` is the place within one.
///
/// Each axis appears once, and a block only beside its axis.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Layout(Vec<LayoutAxis>);

/// Why a text is not a layout, or two layouts do not convert.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The text does not follow the notation.
    #[error("`{text}` is not a layout: {reason}")]
    Text {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The layouts name different axes.
    #[error("layout {from} does not convert to {to}: they should name the same axes")]
    Axes {
        /// The layout of what is given.
        from: Layout,
        /// The layout that is wanted.
        to: Layout,
    },
    /// A shape does not fit its layout.
    #[error("a shape of {found} does not fit layout {layout}: {reason}")]
    Shape {
        /// The layout.
        layout: Layout,
        /// The shape, as text.
        found: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Which part of a sum of indices a [`SourceIndex`] is.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum IndexPart {
    /// The sum itself.
    Whole,
    /// The sum divided by the block's extent: the block.
    Block(i64),
    /// The remainder of that division: the place within the block.
    Within(i64),
}

/// Where along one axis of the source a converted tensor's element comes from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SourceIndex {
    /// The target's axes and their scales: the sum of each index times its scale.
    pub terms: Vec<(usize, i64)>,
    /// What of that sum is the index.
    pub part: IndexPart,
}

impl SourceIndex {
    /// The index, for the target's indices `to`.
    pub fn at(&self, to: &[i64]) -> i64 {
        let sum: i64 = self.terms.iter().map(|&(axis, scale)| to[axis] * scale).sum();
        match self.part {
            IndexPart::Whole => sum,
            IndexPart::Block(n) => sum / n,
            IndexPart::Within(n) => sum % n,
        }
    }
}

impl Layout {
    /// The axes, outermost first.
    pub fn axes(&self) -> &[LayoutAxis] {
        &self.0
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Whether no axis is split into blocks.
    pub fn is_plain(&self) -> bool {
        self.0.iter().all(|a| a.block.is_none())
    }

    /// Which axis is the primal one of that letter (blocks, where it is split).
    pub fn position(&self, primal: char) -> Option<usize> {
        self.0.iter().position(|a| a.primal == primal && a.block.is_none())
    }

    /// Which axis runs within the blocks of that letter, and the blocks' extent.
    pub fn block(&self, primal: char) -> Option<(usize, i64)> {
        self.0.iter().enumerate().find_map(|(k, a)| Some((k, a.block.filter(|_| a.primal == primal)?)))
    }

    /// The layout without its blocks, axes in the same order.
    pub fn plain(&self) -> Layout {
        Layout(self.0.iter().filter(|a| a.block.is_none()).copied().collect())
    }

    /// The same layout with an axis split into blocks whose inner axis comes last. `None` where the layout lacks the axis or
    /// has split it already, or the extent is not positive.
    pub fn split(&self, primal: char, block: i64) -> Option<Layout> {
        if block < 1 || self.position(primal).is_none() || self.block(primal).is_some() {
            return None;
        }
        let mut axes = self.0.clone();
        axes.push(LayoutAxis { primal, block: Some(block) });
        Some(Layout(axes))
    }

    /// Whether tensors convert between the two: they name the same axes.
    pub fn is_convertible(&self, to: &Layout) -> bool {
        let covers = |a: &Layout, b: &Layout| a.0.iter().all(|x| b.position(x.primal).is_some());
        covers(self, to) && covers(to, self)
    }

    /// The shape that a tensor of this layout and `shape` takes under another layout; unknown extents are `None`. Where a
    /// block's extent does not divide an axis, the last block is padded.
    pub fn convert_shape(&self, to: &Layout, shape: &[Option<i64>]) -> Result<Vec<Option<i64>>, LayoutError> {
        if !self.is_convertible(to) {
            return Err(LayoutError::Axes { from: self.clone(), to: to.clone() });
        }
        let bad = |reason: String| LayoutError::Shape {
            layout: self.clone(),
            found: format!(
                "({})",
                shape.iter().map(|d| d.map_or("?".into(), |n| n.to_string())).collect::<Vec<_>>().join(", ")
            ),
            reason,
        };
        if shape.len() != self.rank() {
            return Err(bad(format!("{} axes are wanted", self.rank())));
        }
        for (axis, extent) in self.0.iter().zip(shape) {
            if let (Some(block), Some(n)) = (axis.block, extent)
                && block != *n
            {
                return Err(bad(format!("the blocks of {} have {block} elements, not {n}", axis.primal)));
            }
        }
        let whole = |primal: char| -> Option<i64> {
            let outer = shape[self.position(primal).expect("the layouts name the same axes")]?;
            Some(outer.saturating_mul(self.block(primal).map_or(1, |(_, n)| n)))
        };
        Ok(to
            .0
            .iter()
            .map(|axis| match (axis.block, to.block(axis.primal)) {
                (Some(n), _) => Some(n),
                (None, Some((_, n))) => whole(axis.primal).map(|w| w.div_euclid(n) + (w.rem_euclid(n) != 0) as i64),
                (None, None) => whole(axis.primal),
            })
            .collect())
    }

    /// For each axis of this layout, where along it an element of the tensor converted to layout `to` comes from. In the
    /// padding of a last block that place lies beyond the source's extent. `None` where the layouts do not convert.
    pub fn sources(&self, to: &Layout) -> Option<Vec<SourceIndex>> {
        if !self.is_convertible(to) {
            return None;
        }
        self.0
            .iter()
            .map(|axis| {
                let outer = to.position(axis.primal)?;
                let (mine, theirs) = (self.block(axis.primal), to.block(axis.primal));
                if mine.map(|(_, n)| n) == theirs.map(|(_, n)| n) {
                    let from = if axis.block.is_some() { theirs?.0 } else { outer };
                    return Some(SourceIndex { terms: vec![(from, 1)], part: IndexPart::Whole });
                }
                let terms = match theirs {
                    Some((inner, n)) => vec![(outer, n), (inner, 1)],
                    None => vec![(outer, 1)],
                };
                let part = match (axis.block, mine) {
                    (Some(n), _) => IndexPart::Within(n),
                    (None, Some((_, n))) => IndexPart::Block(n),
                    (None, None) => IndexPart::Whole,
                };
                Some(SourceIndex { terms, part })
            })
            .collect()
    }

    /// Where the layouts differ only in the order of their axes: for each axis of `to`, the axis of this layout.
    pub fn permutation(&self, to: &Layout) -> Option<Vec<usize>> {
        if self.rank() != to.rank() {
            return None;
        }
        to.0.iter().map(|axis| self.0.iter().position(|a| a == axis)).collect()
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Layout, LayoutError> {
        let bad = |reason: String| LayoutError::Text { text: text.to_owned(), reason };
        let mut axes = Vec::<LayoutAxis>::with_capacity(text.len());
        let mut number = "";
        for (at, c) in text.char_indices() {
            let axis = match c {
                '0'..='9' => {
                    number = &text[at - number.len()..=at];
                    continue;
                }
                'A'..='Z' if number.is_empty() => LayoutAxis { primal: c, block: None },
                'A'..='Z' => return Err(bad(format!("{number} should be followed by a lower-case letter, not {c}"))),
                'a'..='z' => match number.parse::<i64>() {
                    Ok(n) if n > 0 => LayoutAxis { primal: c.to_ascii_uppercase(), block: Some(n) },
                    _ => return Err(bad(format!("{c} should follow its block's extent, a positive integer"))),
                },
                _ => return Err(bad(format!("{c:?} is neither a letter nor a digit"))),
            };
            number = "";
            if axes.iter().any(|a| a.primal == axis.primal && a.block.is_some() == axis.block.is_some()) {
                return Err(bad(format!("{c} appears twice")));
            }
            axes.push(axis);
        }
        if !number.is_empty() {
            return Err(bad(format!("{number} should be followed by a lower-case letter")));
        }
        let layout = Layout(axes);
        match layout.0.iter().find(|a| layout.position(a.primal).is_none()) {
            Some(a) => Err(bad(format!("it splits {} but does not name it", a.primal))),
            None if layout.0.is_empty() => Err(bad("it names no axes".into())),
            None => Ok(layout),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|a| match a.block {
            None => write!(f, "{}", a.primal),
            Some(n) => write!(f, "{n}{}", a.primal.to_ascii_lowercase()),
        })
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(text: &str) -> Layout {
        text.parse().expect("a layout")
    }

    fn shape(from: &str, to: &str, extents: &[i64]) -> Vec<i64> {
        let extents: Vec<Option<i64>> = extents.iter().copied().map(Some).collect();
        let shape = layout(from).convert_shape(&layout(to), &extents).expect("convertible");
        shape.into_iter().map(|d| d.expect("known")).collect()
    }

    #[test]
    fn notation() {
        for text in ["NCHW", "NHWC", "NCHW8c", "OIHW8i8o", "NC16n", "NCDHW"] {
            assert_eq!(layout(text).to_string(), text);
        }
        for text in
            ["", "NN", "NCHW8", "NHW8c", "NCHWc", "NCHW0c", "NC8H", "N-C", "NCHW8c4c", "NCHW99999999999999999999c"]
        {
            assert!(text.parse::<Layout>().is_err(), "{text}");
        }
    }

    #[test]
    fn shapes() {
        assert_eq!(shape("NCHW", "NHWC", &[1, 3, 4, 5]), [1, 4, 5, 3]);
        assert_eq!(shape("NCHW", "NCHW8c", &[1, 16, 4, 5]), [1, 2, 4, 5, 8]);
        assert_eq!(shape("NCHW", "NCHW8c", &[1, 3, 4, 5]), [1, 1, 4, 5, 8]);
        assert_eq!(shape("NCHW8c", "NCHW", &[1, 2, 4, 5, 8]), [1, 16, 4, 5]);
        assert_eq!(shape("NCHW8c", "NCHW4c", &[1, 2, 4, 5, 8]), [1, 4, 4, 5, 4]);
        assert_eq!(shape("OIHW", "OIHW8i4o", &[8, 16, 3, 3]), [2, 2, 3, 3, 8, 4]);
        assert!(layout("NCHW8c").convert_shape(&layout("NCHW"), &[Some(1), Some(1), None, Some(1), Some(4)]).is_err());
        assert!(layout("NCHW").convert_shape(&layout("NHW"), &[Some(1); 4]).is_err());
    }

    #[test]
    fn indices() {
        let at = |from: &str, to: &str, index: &[i64]| -> Vec<i64> {
            layout(from).sources(&layout(to)).expect("convertible").iter().map(|s| s.at(index)).collect()
        };
        assert_eq!(at("NCHW", "NHWC", &[0, 1, 2, 3]), [0, 3, 1, 2]);
        assert_eq!(at("NCHW", "NCHW8c", &[0, 1, 2, 3, 5]), [0, 13, 2, 3]);
        assert_eq!(at("NCHW8c", "NCHW", &[0, 13, 2, 3]), [0, 1, 2, 3, 5]);
        assert_eq!(at("NCHW8c", "NCHW4c", &[0, 3, 2, 3, 1]), [0, 1, 2, 3, 5]);
        assert_eq!(at("NCHW8c", "NHWC8c", &[0, 2, 3, 1, 5]), [0, 1, 2, 3, 5]);
    }

    #[test]
    fn permutations() {
        assert_eq!(layout("NCHW").permutation(&layout("NHWC")), Some(vec![0, 2, 3, 1]));
        assert_eq!(layout("NCHW").permutation(&layout("NCHW8c")), None);
    }
}
