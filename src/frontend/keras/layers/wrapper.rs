//! Layers around another one.

use super::{
    super::call::{Arg, Call, Held},
    Class, Masks, class,
    recurrent::apart,
};
use crate::frontend::Convert;

/// The layers.
pub(super) const CLASSES: &[Class] =
    &[class("TimeDistributed", Masks::Pass, time_distributed), class("Wrapper", Masks::Own, wrapper)];

fn wrapper(c: &mut Call) -> Convert<Arg> {
    let mut inner = c.layer.inner("layer")?;
    c.place(&mut inner, &["layer"]);
    let (args, kwargs) = (c.args.clone(), c.kwargs.clone());
    c.call_inner(&inner.shared(), args, kwargs)
}

/// Every step is an element of a larger batch.
fn time_distributed(c: &mut Call) -> Convert<Arg> {
    let x = c.input()?;
    if c.rank(x)? < 2 {
        return Err(c.refuse("its input has no steps"));
    }
    let mut inner = c.layer.inner("layer")?;
    c.place(&mut inner, &["layer"]);
    let merged = c.reshape(x, &[-3, -2])?;
    let out = c.call_inner(&inner.shared(), vec![Arg::of(merged)], Vec::new())?;
    out.map(&mut |t| Ok(Held { id: apart(c, t.id, x)?, mask: None }))
}
