//! The current request of a thread: log lines carry its ids, and its span records warnings.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::context::Link;
use super::request::Request;

thread_local! {
    static CURRENT: RefCell<Request> = const { RefCell::new(Request::OFF) };
}

/// Current request of this thread; off if there is none.
pub fn current() -> Request {
    CURRENT.with_borrow(Clone::clone)
}

/// Ids of the current request's span.
pub(crate) fn current_link() -> Option<Link> {
    CURRENT.with_borrow(Request::link)
}

/// Calls `look` with the current request.
pub(super) fn with_current(look: impl FnOnce(&Request)) {
    CURRENT.with_borrow(look);
}

fn swap(request: &mut Request) {
    CURRENT.with_borrow_mut(|current| std::mem::swap(current, request));
}

/// Makes `request` the current one until the guard is dropped, swapping the previous one into its place. A
/// swap, because this runs at every poll and a clone would change the reference count.
pub fn enter(request: &mut Request) -> Entered<'_> {
    let swapped = request.is_on().then_some(request);
    Entered { swapped: swapped.map(|request| (swap(request), request).1) }
}

/// Restores the previous current request when dropped.
#[derive(Debug)]
pub struct Entered<'a> {
    /// Previous request until the drop; `None` if nothing was changed.
    swapped: Option<&'a mut Request>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(request) = &mut self.swapped {
            swap(request);
        }
    }
}

pin_project! {
    /// Future that runs with a request as the current one.
    #[derive(Debug)]
    pub struct Within<F> {
        request: Request,
        #[pin]
        future: F,
    }
}

/// Runs `future` with `request` as the current one.
pub fn within<F: Future>(request: Request, future: F) -> Within<F> {
    Within { request, future }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let _entered = enter(this.request);
        this.future.poll(context)
    }
}
