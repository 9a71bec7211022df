// SPDX-License-Identifier: BSD-3-Clause
// The sanitizers' run-time options, compiled into every program of a sanitizer build: the run-time libraries
// look these functions up by name. What ASAN_OPTIONS, UBSAN_OPTIONS or TSAN_OPTIONS say wins.
//
// LibTorch itself is not instrumented. Address and undefined-behaviour checks need no suppression for it; vptr
// checks work on its classes too, since it exports their type information.

extern "C" {

const char* __asan_default_options() { return "strict_string_checks=1"; }

// Not the list of the suppressions used: tests compare what programs print.
const char* __lsan_default_options() { return "print_suppressions=0"; }

// The server of c10d's TCPStore does not free the buffers of a message that is incomplete when its connection ends.
const char* __lsan_default_suppressions() { return "leak:c10d::detail::UvTcpSocket::alloc_buffer"; }

const char* __ubsan_default_options() { return "print_stacktrace=1"; }

// The thread sanitizer does not see the atomics inside LibTorch, so that every hand-over between two LibTorch
// threads (Gloo's run loops, autograd's) looks like a race. With this it reports accesses from our code only.
const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }
}
