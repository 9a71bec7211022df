// SPDX-License-Identifier: BSD-3-Clause
#include "observe/stacks.h"

#include "base/throw_error.h"

#ifdef LOCKSTEP_WITH_LIBDW

#include <cstdlib>
#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "base/host.h"
#include "base/limits.h"
#include "base/shared_library.h"
#include "observe/traced_process.h"

namespace lockstep::observe {
namespace {

constexpr std::size_t kMostFrames = 100;
constexpr std::size_t kLongestName = 160;

// The functions of libdw that we call.
struct Dw {
  SharedLibrary library{"libdw", {"libdw.so.1"}, "libdw1"};
  decltype(&::dwfl_addrmodule) addrmodule = library["dwfl_addrmodule"];
  decltype(&::dwfl_begin) begin = library["dwfl_begin"];
  decltype(&::dwfl_end) end = library["dwfl_end"];
  decltype(&::dwfl_errmsg) errmsg = library["dwfl_errmsg"];
  decltype(&::dwfl_frame_pc) frame_pc = library["dwfl_frame_pc"];
  decltype(&::dwfl_getthreads) getthreads = library["dwfl_getthreads"];
  decltype(&::dwfl_lineinfo) lineinfo = library["dwfl_lineinfo"];
  decltype(&::dwfl_linux_proc_attach) linux_proc_attach = library["dwfl_linux_proc_attach"];
  decltype(&::dwfl_linux_proc_find_elf) linux_proc_find_elf = library["dwfl_linux_proc_find_elf"];
  decltype(&::dwfl_linux_proc_report) linux_proc_report = library["dwfl_linux_proc_report"];
  decltype(&::dwfl_module_addrname) module_addrname = library["dwfl_module_addrname"];
  decltype(&::dwfl_module_getsrc) module_getsrc = library["dwfl_module_getsrc"];
  decltype(&::dwfl_module_info) module_info = library["dwfl_module_info"];
  decltype(&::dwfl_report_end) report_end = library["dwfl_report_end"];
  decltype(&::dwfl_thread_getframes) thread_getframes = library["dwfl_thread_getframes"];
  decltype(&::dwfl_thread_tid) thread_tid = library["dwfl_thread_tid"];
};

// Separate files of debug information may be on a server of the network.
int find_no_debug_file(Dwfl_Module* /*module*/, void** /*data*/, const char* /*name*/, Dwarf_Addr /*base*/,
                       const char* /*file*/, const char* /*link*/, GElf_Word /*crc*/, char** /*found*/) {
  return -1;
}

struct Addresses {
  int thread = 0;
  std::vector<Dwarf_Addr> places{};
};

std::string base_name(std::string_view path) { return std::string(path.substr(path.find_last_of('/') + 1)); }

struct Freed {
  void operator()(char* memory) const { std::free(memory); }
};

std::string readable(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, Freed> name(abi::__cxa_demangle(symbol, nullptr, nullptr, &status));
  std::string text = name ? name.get() : symbol;
  if (text.size() > kLongestName) text = text.substr(0, kLongestName) + "...";
  return text;
}

class Unwinder {
 public:
  explicit Unwinder(int pid) : pid_(pid) {
    callbacks_.find_elf = dw_.linux_proc_find_elf;
    callbacks_.find_debuginfo = &find_no_debug_file;
    dwfl_ = dw_.begin(&callbacks_);
  }
  ~Unwinder() { dw_.end(dwfl_); }
  Unwinder(const Unwinder&) = delete;
  Unwinder& operator=(const Unwinder&) = delete;

  std::vector<ThreadStack> run() {
    {
      const TracedProcess stopped(pid_);
      collect();
    }
    // Names take long, and the process runs again.
    std::vector<ThreadStack> stacks;
    for (const auto& thread : threads_) {
      stacks.push_back({.thread = thread.thread,
                        .name = first_line(fmt::format("/proc/{}/task/{}/comm", pid_, thread.thread)),
                        .frames = {}});
      for (const auto place : thread.places) stacks.back().frames.push_back(text_of(place));
    }
    return stacks;
  }

 private:
  void collect() {
    const bool known = dwfl_ != nullptr && dw_.linux_proc_report(dwfl_, pid_) == 0 &&
                       dw_.report_end(dwfl_, nullptr, nullptr) == 0 &&
                       dw_.linux_proc_attach(dwfl_, pid_, /*assume_ptrace_stopped=*/true) == 0;
    if (!known)
      throw_error<Error>("the stacks of process {} cannot be read: libdw: {}", pid_, dw_.errmsg(-1));
    dw_.getthreads(dwfl_, &Unwinder::add_thread, this);
  }

  static int add_thread(Dwfl_Thread* thread, void* unwinder) {
    auto& self = *static_cast<Unwinder*>(unwinder);
    self.threads_.push_back({.thread = self.dw_.thread_tid(thread), .places = {}});
    self.dw_.thread_getframes(thread, &Unwinder::add_frame, unwinder);
    return DWARF_CB_OK;
  }

  static int add_frame(Dwfl_Frame* frame, void* unwinder) {
    auto& self = *static_cast<Unwinder*>(unwinder);
    auto& places = self.threads_.back().places;
    Dwarf_Addr place = 0;
    bool is_activation = false;
    if (!self.dw_.frame_pc(frame, &place, &is_activation) || places.size() == kMostFrames)
      return DWARF_CB_ABORT;
    places.push_back(is_activation ? place : place - 1);  // else the call before the return address
    return DWARF_CB_OK;
  }

  std::string text_of(Dwarf_Addr place) const {
    auto* const module = dw_.addrmodule(dwfl_, place);
    if (module == nullptr) return fmt::format("{:#x}", place);
    const auto* const symbol = dw_.module_addrname(module, place);
    const auto* const file =
        dw_.module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
    const auto name = symbol == nullptr ? fmt::format("{:#x}", place) : readable(symbol);
    int line = 0;
    auto* const source = dw_.module_getsrc(module, place);
    const auto* const path =
        source == nullptr ? nullptr : dw_.lineinfo(source, nullptr, &line, nullptr, nullptr, nullptr);
    if (path != nullptr) return fmt::format("{} at {}:{}", name, base_name(path), line);
    return file == nullptr ? name : fmt::format("{} in {}", name, base_name(file));
  }

  int pid_;
  Dw dw_;
  Dwfl_Callbacks callbacks_{};
  Dwfl* dwfl_ = nullptr;
  std::vector<Addresses> threads_;
};

}  // namespace

// The end of a thread ends all that it traces, threads that do not stop among them, which cannot be detached.
std::vector<ThreadStack> stacks_of(int pid) {
  return start_async("the stacks of a process", [pid] { return Unwinder(pid).run(); }).get();
}

}  // namespace lockstep::observe

#else

namespace lockstep::observe {

std::vector<ThreadStack> stacks_of(int /*pid*/) {
  throw Error("this Lockstep was built without elfutils: install libdw-dev and build it again");
}

}  // namespace lockstep::observe

#endif
