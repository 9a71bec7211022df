// SPDX-License-Identifier: BSD-3-Clause
// The module lockstep_torch._C: creates backends for torch.distributed.
#include <atomic>
#include <chrono>
#include <exception>
#include <pybind11/chrono.h>
#include <string>

#include <torch/csrc/utils/pybind.h>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

#include "base/deadline.h"
#include "comm/operation_futures.h"
#include "rendezvous/python_group.h"

namespace lockstep::python {
namespace {

namespace py = pybind11;

// threading.get_ident() of the thread in which Python runs signal handlers. Another one may import this
// module.
std::atomic<unsigned long> main_thread;

void find_main_thread() {
  main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
}

void raise(const char* module, const char* type, const std::exception& error) {
  PyErr_SetString(py::module_::import(module).attr(type).ptr(), error.what());
}

// Errors of arguments are a caller's, the others the group's. Translators are global in pybind11: this one
// serves torch's own functions that call the backend, too.
void translate(std::exception_ptr error) {
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const ArgumentError& argument) {
    raise("builtins", "ValueError", argument);
  } catch (const Error& failure) {
    raise("torch.distributed", "DistBackendError", failure);
  }
}

c10::intrusive_ptr<c10d::Backend> create_backend(const std::string& name,
                                                 const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                 int size, std::chrono::milliseconds timeout,
                                                 const std::string& group_name, bool enable_reconfigure) {
  const py::gil_scoped_release unlocked;
  rendezvous::agree_on_backend(*store, name, rank, size);
  return rendezvous::create_for_python(name, {.store = store,
                                              .rank = rank,
                                              .size = size,
                                              .timeout = timeout,
                                              .group_name = group_name,
                                              .enable_reconfigure = enable_reconfigure})
      .backend;
}

// PyTorch binds this for its own backends only.
void set_timeout(const c10::intrusive_ptr<c10d::Backend>& backend, std::chrono::milliseconds timeout) {
  backend->setTimeout(timeout);
}

// Runs Python's signal handlers while the main thread waits: Ctrl-C ends a call.
void check_signals() {
  if (PyThread_get_thread_ident() != main_thread) return;
  const py::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// A callback that is running may wait for the GIL.
void leave_interpreter() {
  wait_check = nullptr;
  const py::gil_scoped_release unlocked;
  comm::OperationFutures::abandon_all(std::chrono::seconds(2));
}

}  // namespace
}  // namespace lockstep::python

PYBIND11_MODULE(_C, module) {
  pybind11::register_exception_translator(lockstep::python::translate);
  module.def("create_backend", lockstep::python::create_backend);
  module.def("set_timeout", lockstep::python::set_timeout);
  module.def("enable_caching_cpu_allocator", lockstep::enable_caching_cpu_allocator);
  lockstep::python::find_main_thread();
  // In a child the thread that forked is the main one.
  pybind11::module_::import("os").attr("register_at_fork")(
      pybind11::arg("after_in_child") = pybind11::cpp_function(lockstep::python::find_main_thread));
  lockstep::wait_check = lockstep::python::check_signals;
  pybind11::module_::import("atexit").attr("register")(
      pybind11::cpp_function(lockstep::python::leave_interpreter));
}
