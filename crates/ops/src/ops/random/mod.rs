//! Random numbers by the splittable generator Threefry: its state is a *key*, a tensor that operators take and give back.

mod draw;
mod threefry;

pub(super) use draw::OPS as DRAW;
pub(super) use threefry::OPS as THREEFRY;
