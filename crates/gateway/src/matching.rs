//! From a request's host and path to the rule that serves it, in a time that does not grow with the number of routes.
