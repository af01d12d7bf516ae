//! Which layouts whoever converts a program wants at which operators, and what that means for a call.

use super::{Function, Input, Param, layouts::layout};
use crate::{
    ir::{AttrValue, Attrs, Dim, Type},
    ops::{self, AttrDefault, AttrField},
    tensor::Layout,
};

/// That calls of an operator should be in a layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutRequest {
    /// The operator's name.
    pub op: String,
    /// The layout of the calls that are meant; of all, where it is none.
    pub from: Option<Layout>,
    /// The layout of data that is wanted.
    pub data: Layout,
    /// The layout of the weight; where it is none, the one that goes with the data's.
    pub kernel: Option<Layout>,
}

/// What a call that follows a [`LayoutRequest`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The layout of its data.
    pub data: Layout,
    /// That of its weight, where it has one.
    pub kernel: Option<Layout>,
    /// That of its result.
    pub out: Layout,
    /// The operator that is called.
    pub call: &'static str,
}

impl LayoutRequest {
    /// The request as rules see it: a list of strings, empty where nothing is said.
    pub fn value(&self) -> AttrValue {
        let text = |l: &Option<Layout>| l.as_ref().map_or(String::new(), Layout::to_string);
        let parts = [self.op.clone(), text(&self.from), self.data.to_string(), text(&self.kernel)];
        AttrValue::List(parts.iter().map(|t| AttrValue::from(t.as_str())).collect())
    }

    fn of(value: &AttrValue) -> Option<LayoutRequest> {
        let AttrValue::List(parts) = value else { return None };
        let [AttrValue::Str(op), AttrValue::Str(from), AttrValue::Str(data), AttrValue::Str(kernel)] = &parts[..]
        else {
            return None;
        };
        let given = |t: &str| if t.is_empty() { Some(None) } else { Some(Some(t.parse().ok()?)) };
        Some(LayoutRequest { op: op.to_string(), from: given(from)?, data: data.parse().ok()?, kernel: given(kernel)? })
    }

    /// Whether calls of this operator in these layouts of data and result are meant.
    pub fn means(&self, op: &str, data: &Layout, out: &Layout) -> bool {
        self.op == op
            && self.from.as_ref().is_none_or(|from| from == data || from == out)
            && self.data.is_convertible(data)
    }

    /// Whether a call with these attributes is as it should be; `None` where it is not meant.
    pub fn is_met(&self, attrs: &Attrs, args: &[Type]) -> Option<bool> {
        let field = |name: &str| match attrs.get(name) {
            Some(AttrValue::Str(s)) => Some(s.as_str()),
            _ => None,
        };
        let data: Layout = field("data_layout").or(field("layout"))?.parse().ok()?;
        let of_data = |o: &&str| !o.is_empty() && self.op != GRADIENT;
        let out = field("out_layout").filter(of_data).map_or(Some(data.clone()), |o| o.parse().ok())?;
        self.means(&self.op, &data, &out).then_some(())?;
        let Some(kernel) = field("kernel_layout") else { return Some(data == self.data) };
        if self.op == GRADIENT {
            return Some(self.gradient(&data, kernel, field("out_layout")?).is_none());
        }
        let kernel: Layout = kernel.parse().ok()?;
        let shape = |k: usize| args.get(k).and_then(Type::as_tensor).map(|t| &t.shape[..]);
        let weight = if self.op == "nn.deformable_conv2d" { 2 } else { 1 };
        let groups = attrs.get("groups").and_then(AttrValue::as_int).unwrap_or(1);
        let call = Convolution { data: &data, kernel: &kernel, groups, x: shape(0)?, w: shape(weight)? };
        Some(
            self.wanted(&call).is_some_and(|w| w.call == self.op && w.data == data && w.kernel == Some(kernel.clone())),
        )
    }

    /// What a gradient of a weight in these layouts of gradient, data and result becomes, and the layout of its data (a weight's
    /// layout there means the usual one); `None` where it is so already.
    fn gradient(&self, grad: &Layout, data: &str, out: &str) -> Option<[Layout; 3]> {
        let fields = ops::lookup(GRADIENT)?.op().attrs();
        let (usual, usual_weight) = (default_layout(fields, "data_layout")?, default_layout(fields, "kernel_layout")?);
        let data: Layout = if data == usual_weight.to_string() { usual.clone() } else { data.parse().ok()? };
        let out: Layout = if out.is_empty() { usual_weight.clone() } else { out.parse().ok()? };
        let weight = match &self.kernel {
            Some(given) => given.clone(),
            None => usual_kernel_of(&self.data, &usual, &usual_weight, false)?,
        };
        let possible = self.data.is_plain() && weight.is_plain() && weight.is_convertible(&out);
        let new = *grad != self.data || data != self.data || out != weight;
        (possible && new).then(|| [self.data.clone(), weight, data])
    }

    /// What a convolution becomes; `None` where there is no such call that computes the same.
    fn wanted(&self, c: &Convolution<'_>) -> Option<Wanted> {
        let op = ops::lookup(&self.op)?;
        let default = |name: &str| default_layout(op.op().attrs(), name);
        let (usual_data, usual_kernel) = (default("data_layout")?, default("kernel_layout")?);
        let transposed = self.op.contains("_transpose");
        let (ins, outs) = c.channels(transposed);
        let depthwise = !transposed && c.groups > 1 && ins == Some(c.groups) && c.extent('O') == ins;
        let (mut data, block) = (self.data.clone(), self.data.block('C'));
        self.data.axes().iter().all(|a| a.block.is_none() || a.primal == 'C').then_some(())?;
        let mut plain_kernel = match &self.kernel {
            Some(given) => given.clone(),
            None => usual_kernel_of(&self.data.plain(), &usual_data, &usual_kernel, depthwise)?,
        };
        if let Some((at, c_out)) = block {
            // The quantized and the deformable ones take blocks, but nothing makes good code of them.
            (!self.op.starts_with("qnn.") && self.op != "nn.deformable_conv2d").then_some(())?;
            let (ins, outs) = (ins?, outs?);
            // Few channels, such as the colours of an image, are one block of their own.
            let few = ins < c_out && ins > 0 && self.kernel.is_none();
            let c_in = if ins % c_out == 0 { c_out } else { Some(ins).filter(|_| few)? };
            (outs > 0 && outs % c_out == 0).then_some(())?;
            if c_in != c_out {
                data = with_block(&data, at, c_in)?;
            }
            if self.kernel.is_none() {
                let per_group = c.extent('I')?;
                let i = if per_group % c_in == 0 { c_in } else { Some(per_group).filter(|&n| n < c_in)? };
                let o = if c.extent('O')? % c_out == 0 { c_out } else { return None };
                plain_kernel = plain_kernel.split('I', i)?.split('O', o)?;
            }
        }
        let whole_blocks = plain_kernel.axes().iter().all(|a| match a.block {
            Some(n) => c.extent(a.primal).is_some_and(|extent| extent % n == 0),
            None => true,
        });
        (whole_blocks && plain_kernel.is_convertible(c.kernel) && data.is_convertible(c.data)).then_some(())?;
        let channels_first = self.data.plain() == usual_data;
        let call = match (self.op.as_str(), block) {
            (CONV2D | CONV_BLOCKED | DEPTHWISE_BLOCKED, Some(_)) if channels_first => {
                if depthwise && c.extent('I') == Some(1) { DEPTHWISE_BLOCKED } else { CONV_BLOCKED }
            }
            (CONV2D | CONV_BLOCKED | DEPTHWISE_BLOCKED, _) => CONV2D,
            _ => op.op().name(),
        };
        Some(Wanted { data, kernel: Some(plain_kernel), out: self.data.clone(), call })
    }
}

const GRADIENT: &str = "nn.conv2d_backward_weight";
const CONV2D: &str = "nn.conv2d";
const CONV_BLOCKED: &str = "nn.contrib_conv2d_NCHWc";
const DEPTHWISE_BLOCKED: &str = "nn.contrib_depthwise_conv2d_NCHWc";

/// A call of a convolution as far as layouts go.
struct Convolution<'a> {
    data: &'a Layout,
    kernel: &'a Layout,
    groups: i64,
    x: &'a [Dim],
    w: &'a [Dim],
}

impl Convolution<'_> {
    /// The whole extent of an axis of the weight.
    fn extent(&self, letter: char) -> Option<i64> {
        extent(self.kernel, self.w, letter)
    }

    /// The channels of data and of the result.
    fn channels(&self, transposed: bool) -> (Option<i64>, Option<i64>) {
        let ins = extent(self.data, self.x, 'C');
        let (o, i) = (self.extent('O'), self.extent('I'));
        let outs = match () {
            _ if transposed => o.map(|o| o * self.groups),
            // Depthwise, the weight's inputs are results per channel.
            _ if self.groups > 1 && ins == Some(self.groups) && o == ins => o.zip(i).map(|(o, i)| o * i),
            _ => o,
        };
        (ins, outs)
    }
}

/// The extent of an axis, blocks and what is within them together.
fn extent(l: &Layout, shape: &[Dim], letter: char) -> Option<i64> {
    let Dim::Known(n) = *shape.get(l.position(letter)?)? else { return None };
    Some(n * l.block(letter).map_or(1, |(_, b)| b))
}

/// The layout that an attribute of an operator has where none is given: that of channels first.
fn default_layout(fields: &[AttrField], name: &str) -> Option<Layout> {
    match fields.iter().find(|f| f.name == name)?.default {
        AttrDefault::Str(text) => text.parse().ok(),
        _ => None,
    }
}

/// The weight's layout that goes with a plain layout of data; as in TVM.
fn usual_kernel_of(data: &Layout, usual: &Layout, kernel: &Layout, depthwise: bool) -> Option<Layout> {
    if data == usual {
        return Some(kernel.clone());
    }
    let spatial: String = kernel.axes().iter().map(|a| a.primal).filter(|c| !"OI".contains(*c)).collect();
    let names: String = data.axes().iter().map(|a| a.primal).collect();
    match () {
        _ if names == format!("N{spatial}C") => {
            format!("{spatial}{}", if depthwise { "OI" } else { "IO" }).parse().ok()
        }
        _ if names == format!("{spatial}NC") => format!("{spatial}OI").parse().ok(),
        _ => Some(kernel.clone()),
    }
}

/// A layout whose block at an axis is of another extent.
fn with_block(l: &Layout, at: usize, block: i64) -> Option<Layout> {
    let axis = |(k, a): (usize, &crate::tensor::LayoutAxis)| match a.block {
        None => a.primal.to_string(),
        Some(n) => format!("{}{}", if k == at { block } else { n }, a.primal.to_ascii_lowercase()),
    };
    l.axes().iter().enumerate().map(axis).collect::<String>().parse().ok()
}

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "wanted-convolutions",
        params: &[Param::List, Param::Str, Param::Str, Param::Str, Param::Str, Param::Int, Param::Class, Param::Class],
        gives: Param::List,
        doc: "(wanted-convolutions requests operator data-layout kernel-layout out-layout groups x w): what these requests, each \
              [operator from data kernel], make of such a call: lists of the layouts of data, weight and result, the attribute \
              out_layout, and the operator. Nothing where the call is so already, or where channels don't fill blocks.",
        of_extents: false,
        eval: wanted_convolutions,
    },
    Function {
        name: "wanted-gradients",
        params: &[Param::List, Param::Str, Param::Str, Param::Str],
        gives: Param::List,
        doc: "(wanted-gradients requests data-layout kernel-layout out-layout): what these requests make of a gradient of a weight: \
              lists of the layouts of data, of the weight, and of the data so far.",
        of_extents: false,
        eval: |a| {
            let grad = layout(&a[1])?;
            let meant = requests(&a[0])?.into_iter().filter(|w| w.means(GRADIENT, &grad, &grad));
            let found = meant.filter_map(|w| w.gradient(&grad, a[2].str()?, a[3].str()?));
            let list = |ls: [Layout; 3]| AttrValue::List(ls.map(|l| AttrValue::from(l.to_string().as_str())).into());
            Some(AttrValue::List(found.map(list).collect()))
        },
    },
    Function {
        name: "wanted-layouts",
        params: &[Param::List, Param::Str, Param::Str, Param::Class],
        gives: Param::List,
        doc: "(wanted-layouts requests operator layout x): the layouts that these requests ask for for such a call whose blocks are \
              filled by x.",
        of_extents: false,
        eval: wanted_layouts,
    },
];

fn requests(a: &Input<'_>) -> Option<Vec<LayoutRequest>> {
    a.list()?.iter().map(LayoutRequest::of).collect()
}

fn wanted_convolutions(a: &[Input<'_>]) -> Option<AttrValue> {
    let (op, data, kernel) = (a[1].str()?, layout(&a[2])?, layout(&a[3])?);
    let out = if a[4].str()?.is_empty() { data.clone() } else { layout(&a[4])? };
    let (x, w) = (a[6].class()?.tensor()?, a[7].class()?.tensor()?);
    let call = Convolution { data: &data, kernel: &kernel, groups: a[5].int()?, x: &x.shape, w: &w.shape };
    let mut found = Vec::new();
    for request in requests(&a[0])?.iter().filter(|w| w.means(op, &data, &out)) {
        let Some(wanted) = request.wanted(&call) else { continue };
        if wanted.call == op && wanted.data == data && wanted.kernel.as_ref() == Some(&kernel) {
            continue;
        }
        let kernel = wanted.kernel.as_ref().map_or(String::new(), Layout::to_string);
        let out_attr = if wanted.out == wanted.data { String::new() } else { wanted.out.to_string() };
        let parts = [wanted.data.to_string(), kernel, wanted.out.to_string(), out_attr, wanted.call.to_owned()];
        found.push(AttrValue::List(parts.iter().map(|t| AttrValue::from(t.as_str())).collect()));
    }
    Some(AttrValue::List(found.into()))
}

fn wanted_layouts(a: &[Input<'_>]) -> Option<AttrValue> {
    let (op, from, x) = (a[1].str()?, layout(&a[2])?, a[3].class()?.tensor()?);
    let shape: Vec<Option<i64>> = x.shape.iter().map(|d| d.known()).collect();
    let fits = |to: &Layout| *to != from && super::fills_nothing(&from, to, &shape) == Some(true);
    let wanted = requests(&a[0])?.into_iter().filter(|w| w.means(op, &from, &from)).map(|w| w.data).filter(fits);
    Some(AttrValue::List(wanted.map(|l| AttrValue::from(l.to_string().as_str())).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(
        op: &str,
        (data, kernel): (&str, &str),
        c: (&str, &str, i64),
        x: &[i64],
        w: &[i64],
    ) -> Option<[String; 3]> {
        let kernel = (!kernel.is_empty()).then(|| kernel.parse().expect("a layout"));
        let request = LayoutRequest { op: op.to_owned(), from: None, data: data.parse().expect("a layout"), kernel };
        let dims = |s: &[i64]| s.iter().map(|&n| Dim::Known(n)).collect::<Vec<Dim>>();
        let (data, kernel) = (c.0.parse().expect("a layout"), c.1.parse().expect("a layout"));
        let call = Convolution { data: &data, kernel: &kernel, groups: c.2, x: &dims(x), w: &dims(w) };
        let w = request.wanted(&call)?;
        Some([w.data.to_string(), w.kernel?.to_string(), w.call.to_owned()])
    }

    #[test]
    fn kernels_go_with_the_data() {
        let nchw = ("NCHW", "OIHW", 1);
        let f = |to: &str, c, x: &[i64], w: &[i64]| wanted("nn.conv2d", (to, ""), c, x, w).map(|w| w.join(" "));
        let (x, w) = ([1, 16, 8, 8], [32, 16, 3, 3]);
        assert_eq!(f("NHWC", nchw, &x, &w).as_deref(), Some("NHWC HWIO nn.conv2d"));
        assert_eq!(f("HWNC", nchw, &x, &w).as_deref(), Some("HWNC HWOI nn.conv2d"));
        assert_eq!(f("NCHW8c", nchw, &x, &w).as_deref(), Some("NCHW8c OIHW8i8o nn.contrib_conv2d_NCHWc"));
        assert_eq!(f("NHWC8c", nchw, &x, &w).as_deref(), Some("NHWC8c HWIO8i8o nn.conv2d"));
        assert_eq!(f("NCHW5c", nchw, &x, &w), None, "blocks of 5 are not filled");
        let few = f("NCHW16c", nchw, &[1, 3, 8, 8], &[32, 3, 3, 3]);
        assert_eq!(few.as_deref(), Some("NCHW3c OIHW3i16o nn.contrib_conv2d_NCHWc"));
        let depthwise = ("NCHW", "OIHW", 16);
        assert_eq!(f("NHWC", depthwise, &x, &[16, 1, 3, 3]).as_deref(), Some("NHWC HWOI nn.conv2d"));
        let blocked = f("NCHW4c", depthwise, &x, &[16, 1, 3, 3]);
        assert_eq!(blocked.as_deref(), Some("NCHW4c OIHW1i4o nn.contrib_depthwise_conv2d_NCHWc"));
        let back = wanted(
            "nn.contrib_conv2d_NCHWc",
            ("NCHW", ""),
            ("NCHW8c", "OIHW8i8o", 1),
            &[1, 2, 8, 8, 8],
            &[4, 2, 3, 3, 8, 8],
        );
        assert_eq!(back.map(|w| w.join(" ")).as_deref(), Some("NCHW OIHW nn.conv2d"));
        let t = wanted("nn.conv2d_transpose", ("NHWC", ""), ("NCHW", "IOHW", 1), &x, &[16, 32, 3, 3]);
        assert_eq!(t.map(|w| w.join(" ")).as_deref(), Some("NHWC HWIO nn.conv2d_transpose"));
    }
}
