// SPDX-License-Identifier: BSD-3-Clause
#include "top.h"

#include <algorithm>
#include <clocale>
#include <iostream>
#include <thread>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "observe/follow_run.h"
#include "run_on_hosts.h"
#include "top_table.h"

#ifdef LOCKSTEP_WITH_NCURSES
#include <array>
#include <csignal>
#include <deque>
#include <memory>
#include <optional>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/host.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "launch/guard.h"
#include "observe/stack_report.h"
#include "terminal.h"
#endif

namespace lockstep::cli {
namespace {

// Traffic is the difference of two readings.
constexpr std::chrono::milliseconds kBetweenReadings{200};

Snapshot snapshot_here(const std::string& name) {
  observe::FollowedRun followed(name);
  const auto earlier = followed.observed().read(/*with_activity=*/false);
  std::this_thread::sleep_for(kBetweenReadings);
  Snapshot now{.run = followed.observed().read()};
  now.figures = observe::figures_of(now.run, &earlier, followed.memory());
  return now;
}

Snapshot snapshot_of_hosts(const std::string& name) {
  RunOnHosts on_hosts(name);
  const auto earlier = on_hosts.read();
  const auto is_seen = [](const observe::HostState& host) { return host.problem.empty(); };
  // Those that do not answer are not waited for twice.
  if (!std::ranges::all_of(earlier.run.hosts, is_seen))
    return {.run = earlier.run, .figures = earlier.figures()};
  std::this_thread::sleep_for(kBetweenReadings);
  const auto now = on_hosts.read();
  return {.run = now.run, .figures = now.figures(&earlier)};
}

}  // namespace

Snapshot snapshot_of(const std::string& name, bool hosts) {
  auto now = hosts ? snapshot_of_hosts(name) : snapshot_here(name);
  now.verdict = observe::judge(now.run);
  return now;
}

int print_run(const std::string& name, bool json, bool hosts) {
  std::setlocale(LC_CTYPE, "");
  const auto now = snapshot_of(name, hosts);
  if (json) {
    auto report = observe::to_json(now.run);
    report["verdict"] = observe::to_json(now.verdict);
    report["figures"] = observe::to_json(now.figures);
    std::cout << report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n' << std::flush;
  } else {
    std::cout << plain_text(now) << std::flush;
  }
  return now.verdict.cause == observe::Cause::none ? 0 : 1;
}

#ifdef LOCKSTEP_WITH_NCURSES

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kActivityPeriod{1};
constexpr std::int64_t kTrafficTime = 2'000'000'000;  // nanoseconds between the two readings of traffic

sigset_t ending_signals() {
  sigset_t signals{};
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) ::sigaddset(&signals, signal);
  return signals;
}

// A run as a sequence of snapshots.
class Snapshots {
 public:
  Snapshots() = default;
  virtual ~Snapshots() = default;
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  // False: the run has ended.
  virtual bool take() = 0;
  // How the run has ended.
  virtual std::string farewell() const = 0;

  const Snapshot& last() const { return last_; }

  std::vector<std::string> stack_of(int rank) const {
    const auto found = std::ranges::find(last_.run.ranks, rank, &observe::Rank::rank);
    if (found == last_.run.ranks.end()) return {};
    try {
      return stack_lines(*found);
    } catch (const Error& error) {
      return wrapped_text(error.what(), 80, 10);
    }
  }

 protected:
  virtual std::vector<std::string> stack_lines(const observe::Rank& rank) const = 0;

  static std::uint64_t steps_of(const observe::Run& run) {
    std::uint64_t steps = 0;
    for (const auto& rank : run.ranks) {
      if (rank.progress) steps = std::max(steps, rank.progress->steps);
    }
    return steps;
  }

  Snapshot last_{};
};

class SnapshotsHere final : public Snapshots {
 public:
  explicit SnapshotsHere(const std::string& name) : followed_(name) {}

  bool take() override {
    auto run = followed_.read();
    if (!run) return false;
    auto verdict = observe::judge(*run);
    if (verdict.cause != observe::Cause::none) {
      add_activities(*run);
      verdict = observe::judge(*run);
    }
    if (!last_.run.ranks.empty()) past_.push_back(std::move(last_.run));
    while (past_.size() > 1 && past_[1].taken_at + kTrafficTime <= run->taken_at) past_.pop_front();
    auto figures = observe::figures_of(*run, past_.empty() ? nullptr : &past_.front(), followed_.memory());
    last_ = {.run = std::move(*run), .figures = std::move(figures), .verdict = std::move(verdict)};
    return true;
  }

  std::string farewell() const override {
    const auto run = followed_.observed().read(/*with_activity=*/false);
    std::vector<std::string> dead;
    for (const auto& rank : run.ranks) {
      // Only ranks in groups say that they leave.
      if (rank.life == observe::Life::dead && !rank.groups.empty()) dead.push_back(rank.describe());
    }
    auto text = fmt::format("The run has ended after {} steps", steps_of(run));
    if (!dead.empty()) text += fmt::format("; without leaving it have ended: {}", fmt::join(dead, ", "));
    return text + ".";
  }

 private:
  std::vector<std::string> stack_lines(const observe::Rank& rank) const override {
    return split(observe::stacks_text(followed_.observed(), rank.pid), '\n');
  }

  // What the ranks' threads do is costly to find out, so that it is up to a second old.
  void add_activities(observe::Run& run) {
    const auto now = Clock::now();
    if (now - activities_at_ >= kActivityPeriod) {
      with_activities_ = followed_.observed().read();
      activities_at_ = now;
    }
    for (auto& rank : run.ranks) {
      const auto known = std::ranges::find(with_activities_.ranks, rank.thread, &observe::Rank::thread);
      if (known != with_activities_.ranks.end()) rank.activity = known->activity;
    }
  }

  observe::FollowedRun followed_;
  std::deque<observe::Run> past_{};  // readings of the last time, the oldest first
  observe::Run with_activities_{};
  Clock::time_point activities_at_{};
};

// Through the launcher of this host.
class SnapshotsOfHosts final : public Snapshots {
 public:
  explicit SnapshotsOfHosts(const std::string& name) : on_hosts_(name) {}

  // While a host does not answer, the last snapshot is shown, and keys are read in between.
  bool take() override {
    const bool is_first = last_.run.hosts.empty();
    try {
      auto reading = is_first ? on_hosts_.read() : on_hosts_.read_within(kPatience);
      if (reading) keep(std::move(*reading));
    } catch (const Error& error) {
      if (is_first) throw;
      if (on_hosts_.has_ended()) return false;
      last_.run.hosts.front().problem = error.what();
    }
    return true;
  }

  std::string farewell() const override {
    return fmt::format("The launcher of this host has ended; its run had made {} steps.",
                       steps_of(last_.run));
  }

 private:
  static constexpr std::chrono::milliseconds kPatience{300};

  std::vector<std::string> stack_lines(const observe::Rank& rank) const override {
    const auto pid = std::to_string(rank.pid);
    if (rank.host == host_name()) return split(observe::stacks_text(observe::find_run(pid), rank.pid), '\n');
    return wrapped_text(fmt::format("Rank {} runs on {}: `lockstep stacks {}` shows its stack there.",
                                    rank.rank, rank.host, pid),
                        80, 10);
  }

  void keep(HostsReading reading) {
    auto figures = reading.figures(earlier_ ? &*earlier_ : nullptr);
    auto verdict = observe::judge(reading.run);
    last_ = {.run = reading.run, .figures = std::move(figures), .verdict = std::move(verdict)};
    earlier_ = std::move(reading);
  }

  RunOnHosts on_hosts_;
  std::optional<HostsReading> earlier_{};
};

class Viewer {
 public:
  Viewer(Snapshots& snapshots, std::chrono::milliseconds interval)
      : snapshots_(snapshots), interval_(interval), signals_(::signalfd(-1, &blocked_, SFD_CLOEXEC)) {
    if (!snapshots.last().run.ranks.empty()) view_.picked = snapshots.last().run.ranks.front().rank;
  }

  // Until the user leaves or the run ends. True if it has ended.
  bool show() {
    while (true) {
      const auto next = Clock::now() + interval_;
      do {
        view_.width = terminal_.width();
        view_.height = terminal_.height();
        terminal_.draw(page_of(snapshots_.last(), view_));
        if (!wait_until(next)) return false;
      } while (Clock::now() < next);
      if (!snapshots_.take()) return true;
    }
  }

 private:
  // Until then, or until a key came. False if the user leaves.
  bool wait_until(Clock::time_point time) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now());
    std::array<pollfd, 2> events{pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{signals_.get(), POLLIN, 0}};
    // A signal of ncurses, as of a new size, ends it too.
    const int count =
        ::poll(events.data(), events.size(), static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (count > 0 && (events[0].revents & (POLLHUP | POLLERR)) != 0) return false;
    if (count > 0 && events[1].revents != 0) {
      signalfd_siginfo signal{};
      (void)!::read(signals_.get(), &signal, sizeof(signal));  // or it would end the process later
      return false;
    }
    for (auto key = terminal_.key(); key != Key::none; key = terminal_.key()) {
      if (key == Key('q')) return false;
      press(key);
    }
    return true;
  }

  void press(Key key) {
    switch (static_cast<int>(key)) {
      case static_cast<int>(Key::up):
      case 'k':
        return move(-1);
      case static_cast<int>(Key::down):
      case 'j':
        return move(1);
      case static_cast<int>(Key::page_up):
        return move(-10);
      case static_cast<int>(Key::page_down):
        return move(10);
      case 'o':
        view_.order = Order((static_cast<int>(view_.order) + 1) % (static_cast<int>(Order::memory) + 1));
        return;
      case 'c':
        return toggle(Panel::calls);
      case 's':
        return toggle(Panel::stack);
      case 'h':
      case '?':
        return toggle(Panel::help);
      case static_cast<int>(Key::escape):
        return toggle(view_.panel);
      default:
        return;
    }
  }

  void toggle(Panel panel) {
    view_.panel = view_.panel == panel ? Panel::ranks : panel;
    view_.first = 0;
    if (view_.panel == Panel::stack) view_.stack = snapshots_.stack_of(view_.picked);
  }

  // Scrolls, or picks another rank.
  void move(int lines) {
    if (view_.panel != Panel::ranks) {
      view_.first = lines < 0 && view_.first < static_cast<std::size_t>(-lines) ? 0 : view_.first + lines;
      return;
    }
    const auto& ranks = snapshots_.last().run.ranks;
    if (ranks.empty()) return;
    const auto order = ranks_in_order(snapshots_.last(), view_.order);
    const auto at =
        std::ranges::find(order, view_.picked, [&](std::size_t place) { return ranks[place].rank; });
    const auto place = (at == order.end() ? 0 : at - order.begin()) + lines;
    const auto last = static_cast<std::ptrdiff_t>(order.size()) - 1;
    view_.picked = ranks[order[static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(place, 0, last))]].rank;
  }

  Snapshots& snapshots_;
  std::chrono::milliseconds interval_;
  sigset_t blocked_ = ending_signals();
  launch::BlockedSignals blocking_{blocked_};
  UniqueFd signals_;
  Terminal terminal_{};
  View view_{};
};

}  // namespace

int show_run(const std::string& name, std::chrono::milliseconds interval, bool hosts) {
  std::setlocale(LC_CTYPE, "");
  std::unique_ptr<Snapshots> snapshots;
  if (hosts) {
    snapshots = std::make_unique<SnapshotsOfHosts>(name);
  } else {
    snapshots = std::make_unique<SnapshotsHere>(name);
  }
  bool has_ended = !snapshots->take();
  if (!has_ended) has_ended = Viewer(*snapshots, interval).show();
  if (has_ended) std::cout << snapshots->farewell() << '\n' << std::flush;
  return 0;
}

#else

int show_run(const std::string& /*name*/, std::chrono::milliseconds /*interval*/, bool /*hosts*/) {
  throw Error(
      "this Lockstep was built without ncurses: install libncurses-dev and build it again, or use `lockstep top --once`");
}

#endif

}  // namespace lockstep::cli
