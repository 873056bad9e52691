//! Empty: the benchmarks are beside this file.
