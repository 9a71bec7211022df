// SPDX-License-Identifier: BSD-3-Clause
// What the launcher's tests run as a rank. The first argument says what to do.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/run_memory.h"

namespace {

int number(const char* variable) { return std::atoi(std::getenv(variable)); }

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count <= 0) std::exit(9);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

// Lines "<stream> <rank> <index> xxx...", cut by the writes at odd places.
void flood(int fd, std::string_view stream, int lines) {
  std::string pending;
  for (int index = 0; index < lines; ++index) {
    pending += fmt::format("{} {} {} {}\n", stream, number("RANK"), index, std::string(index % 300, 'x'));
    while (pending.size() > 777) {
      write_all(fd, std::string_view(pending).substr(0, 777));
      pending.erase(0, 777);
    }
  }
  write_all(fd, pending);
}

sockaddr_in master() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(number("MASTER_PORT")));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Rank 0 takes the port as c10d's TCPStore does, and counts the others.
int serve() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const sockaddr_in address = master();
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return 3;
  if (::listen(listener, 128) != 0) return 4;
  for (int others = number("WORLD_SIZE") - 1; others > 0; --others) {
    if (::accept(listener, nullptr, nullptr) < 0) return 5;
  }
  return 0;
}

int meet() {
  ::alarm(60);
  if (number("RANK") == 0) return serve();
  const sockaddr_in address = master();
  for (;;) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return 0;
    ::close(fd);
    ::usleep(1000);
  }
}

// Tells its pid, then each signal it gets; the first one ends it unless it shall `stay`. Not a shell script:
// a shell may start one more command, and wait for it, before it runs a trap.
int tell_signals(bool stay) {
  sigset_t told;
  sigemptyset(&told);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&told, signal_number);
  ::sigprocmask(SIG_BLOCK, &told, nullptr);
  write_all(STDOUT_FILENO, fmt::format("pid {} of {}\n", ::getpid(), number("RANK")));
  do {
    int got = 0;
    ::sigwait(&told, &got);
    write_all(STDOUT_FILENO, fmt::format("got {}\n", ::sigabbrev_np(got)));
  } while (stay);
  return 0;
}

// Ends at a signal as a program that saves a checkpoint does, which takes a while.
int save_on_signal() {
  sigset_t awaited;
  sigemptyset(&awaited);
  for (const int signal_number : {SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&awaited, signal_number);
  ::sigprocmask(SIG_BLOCK, &awaited, nullptr);
  write_all(STDOUT_FILENO, fmt::format("pid {} of {}\n", ::getpid(), number("RANK")));
  int got = 0;
  ::sigwait(&awaited, &got);
  write_all(STDOUT_FILENO, fmt::format("got {}\n", ::sigabbrev_np(got)));
  ::usleep(150'000);
  return lockstep::kExitInterrupted;
}

// Sets the phase of the run, if one is named, and tells it.
int tell_phase(std::string_view name) {
  constexpr std::array<std::string_view, 4> names{"starting", "running", "finished", "stopped"};
  const auto memory = lockstep::RunMemory::inherited(lockstep::Env());
  if (!memory) {
    write_all(STDOUT_FILENO, "no phase\n");
    return 0;
  }
  auto& phase = memory->state().phase;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) phase = static_cast<lockstep::RunPhase>(i);
  }
  write_all(STDOUT_FILENO, fmt::format("phase {}\n", names.at(static_cast<std::size_t>(phase.load()))));
  return 0;
}

// As lockstep::init() does in a spare: waits until it is a rank. Then, and in a rank, it becomes `program`.
int become(char** program) {
  if (std::getenv("LOCKSTEP_SPARE") != nullptr) {
    for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT"}) {
      if (std::getenv(name) != nullptr) return 8;
    }
    write_all(STDOUT_FILENO, "a spare waits\n");
    std::FILE* const orders = ::fdopen(number("LOCKSTEP_SPARE"), "r");
    std::array<char, 16> rank{};
    std::array<char, 16> local_rank{};
    std::array<char, 16> restarts{};
    if (std::fscanf(orders, "%15s %15s %15s", rank.data(), local_rank.data(), restarts.data()) != 3) return 0;
    std::fclose(orders);
    ::setenv("RANK", rank.data(), 1);
    ::setenv("LOCAL_RANK", local_rank.data(), 1);
    ::setenv("TORCHELASTIC_RESTART_COUNT", restarts.data(), 1);
    ::unsetenv("LOCKSTEP_SPARE");
  }
  ::execvp(program[0], program);
  return 126;
}

// Dies of a plain signal, also where a sanitizer would catch it, and leaves no core file.
[[noreturn]] void die_of(int signal_number) {
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "flood") {
    const int lines = std::atoi(argv[2]);
    flood(STDOUT_FILENO, "out", lines);
    flood(STDERR_FILENO, "err", lines);
    return 0;
  }
  if (what == "meet") return meet();
  if (what == "tell-signal") return tell_signals(false);
  if (what == "tell-signals") return tell_signals(true);
  if (what == "save-on-signal") return save_on_signal();
  if (what == "phase") return tell_phase(argc > 2 ? argv[2] : "");
  if (what == "become") return become(argv + 2);
  if (what == "segv") die_of(SIGSEGV);
  return 2;
}
