// SPDX-License-Identifier: BSD-3-Clause
#include "observe/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <set>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/version.h>

#include "observe/find_runs.h"

namespace lockstep::observe {
namespace {

// With U+FFFD for what is not UTF-8: Prometheus drops a whole scrape for one label.
std::string escaped(const std::string& text) {
  using nlohmann::json;
  const auto valid = json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
  std::string out;
  for (const char c : valid.get_ref<const std::string&>()) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\' || c == '"') out += '\\';
      out += c;
    }
  }
  return out;
}

std::string value_text(std::integral auto value) { return fmt::format("{}", value); }

std::string value_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

double seconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-9; }

struct Label {
  std::string_view name;
  std::string value;
};

struct Sample {
  std::vector<Label> labels;
  std::string value;
};
using Samples = std::vector<Sample>;

Samples one(auto value) { return {{.labels = {}, .value = value_text(value)}}; }

Samples per_group(const Rank& rank, auto value) {
  Samples samples;
  for (const auto& member : rank.groups) {
    samples.push_back({{{"backend", member.backend}, {"group", member.group}}, value_text(value(member))});
  }
  return samples;
}

Samples per_phase(auto value) {
  Samples samples;
  for (std::size_t i = 0; i < kPhases; ++i) {
    samples.push_back({{{"phase", std::string(kPhaseNames.at(i))}}, value_text(value(i))});
  }
  return samples;
}

// The age of the call for which the rank has waited for the longest; 0 if it waits for none.
double call_age(const Run& run, const Rank& rank) {
  std::int64_t age = 0;
  for (const auto& member : rank.groups) {
    const auto* const call = member.awaited == 0 ? nullptr : member.find(member.awaited);
    if (call != nullptr) age = std::max(age, run.taken_at - call->issued_at);
  }
  return seconds(age);
}

// With the phase that has not ended yet.
double phase_seconds(const Run& run, const Progress& progress, std::size_t phase) {
  const bool is_current = phase == static_cast<std::size_t>(progress.phase);
  const auto unfinished = is_current ? std::max<std::int64_t>(run.taken_at - progress.phase_since, 0) : 0;
  return seconds(progress.spent.at(phase) + unfinished);
}

Samples reported(const Progress& progress) {
  Samples samples;
  for (const auto& [name, value] : progress.numbers) samples.push_back({{{"name", name}}, value_text(value)});
  return samples;
}

struct Family {
  const char* name;
  const char* type;
  const char* help;
};

struct RankFamily {
  Family family;
  Samples (*samples)(const Run& run, const Rank& rank);
};

struct ProgressFamily {
  Family family;
  Samples (*samples)(const Run& run, const Progress& progress);
};

constexpr std::array kOfRanks{
    RankFamily{{"lockstep_rank_up", "gauge", "1 while the rank runs or is stopped, 0 after it has died."},
               [](const Run&, const Rank& rank) {
                 return rank.life == Life::finished ? Samples() : one(rank.life == Life::dead ? 0 : 1);
               }},
    RankFamily{{"lockstep_rank_stopped", "gauge", "1 while a signal or a debugger has stopped the rank."},
               [](const Run&, const Rank& rank) { return one(rank.life == Life::stopped ? 1 : 0); }},
    RankFamily{{"lockstep_call_age_seconds", "gauge",
                "Age of the call for which the rank has waited for the longest, 0 if it waits for none."},
               [](const Run& run, const Rank& rank) { return one(call_age(run, rank)); }},
    RankFamily{{"lockstep_calls_total", "counter", "Calls that the rank has issued in a group."},
               [](const Run&, const Rank& rank) {
                 return per_group(rank, [](const Membership& member) { return member.issued; });
               }},
    RankFamily{{"lockstep_communication_bytes_total", "counter",
                "Bytes of the tensors of the calls that the rank has issued in a group."},
               [](const Run&, const Rank& rank) {
                 return per_group(rank, [](const Membership& member) { return member.bytes; });
               }},
};

constexpr std::array kOfProgress{
    ProgressFamily{{"lockstep_steps_total", "counter", "Steps that the rank has made."},
                   [](const Run&, const Progress& progress) { return one(progress.steps); }},
    ProgressFamily{{"lockstep_samples_total", "counter", "Samples that loaders have given to the rank."},
                   [](const Run&, const Progress& progress) { return one(progress.samples); }},
    ProgressFamily{{"lockstep_epoch", "gauge", "Epoch of the loader, once it is set."},
                   [](const Run&, const Progress& progress) {
                     return progress.epoch < 0 ? Samples() : one(progress.epoch);
                   }},
    ProgressFamily{{"lockstep_phase", "gauge", "1 for the phase in which the rank is, 0 for the others."},
                   [](const Run&, const Progress& progress) {
                     return per_phase([&](std::size_t i) {
                       return i == static_cast<std::size_t>(progress.phase) ? 1 : 0;
                     });
                   }},
    ProgressFamily{{"lockstep_phase_seconds_total", "counter", "Seconds that the rank has spent in a phase."},
                   [](const Run& run, const Progress& progress) {
                     return per_phase([&](std::size_t i) { return phase_seconds(run, progress, i); });
                   }},
    ProgressFamily{{"lockstep_resident_bytes", "gauge",
                    "Resident memory of the rank's process at the end of one of its last steps."},
                   [](const Run&, const Progress& progress) {
                     return progress.memory.empty() ? Samples() : one(progress.memory.back().resident);
                   }},
    ProgressFamily{
        {"lockstep_gathered_bytes", "gauge", "Bytes of sharded parameters that the rank has gathered now."},
        [](const Run&, const Progress& progress) { return one(progress.gathered); }},
    ProgressFamily{{"lockstep_reported", "gauge", "The last value of a number of lockstep::report()."},
                   [](const Run&, const Progress& progress) { return reported(progress); }},
};

class Text {
 public:
  explicit Text(const Run& run) : run_(run), of_host_({{"host", run.host}, {"run", run.id}}) {}

  void add(const Family& family, Samples samples) {
    written_.clear();
    write(family, of_host_, samples);
  }
  void add(const RankFamily& each) {
    written_.clear();
    for (const auto& rank : run_.ranks) write(each.family, labels_of(rank), each.samples(run_, rank));
  }
  void add(const ProgressFamily& each) {
    written_.clear();
    for (const auto& rank : run_.ranks) {
      if (rank.progress) write(each.family, labels_of(rank), each.samples(run_, *rank.progress));
    }
  }
  void add_comment(std::string comment) {
    std::ranges::replace(comment, '\n', ' ');
    out_ += fmt::format("# {}\n", comment);
  }
  std::string take() { return std::move(out_); }

 private:
  std::vector<Label> labels_of(const Rank& rank) const {
    auto labels = of_host_;
    labels.push_back({"rank", std::to_string(rank.rank)});
    return labels;
  }

  // Prometheus refuses a scrape with two samples of the same labels.
  void write(const Family& family, const std::vector<Label>& labels, const Samples& samples) {
    for (const auto& sample : samples) {
      std::string text;
      for (const auto* const some : {&labels, &sample.labels}) {
        for (const auto& label : *some)
          text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", label.name, escaped(label.value));
      }
      if (written_.empty())
        out_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", family.name, family.help, family.type);
      if (written_.insert(text).second) out_ += fmt::format("{}{{{}}} {}\n", family.name, text, sample.value);
    }
  }

  const Run& run_;
  const std::vector<Label> of_host_;
  std::string out_;
  std::set<std::string> written_;  // labels in this family
};

std::vector<Process> processes_of(const std::vector<int>& pids) {
  std::vector<Process> processes;
  for (const int pid : pids) {
    if (auto process = own_process(pid)) processes.push_back(std::move(*process));
  }
  return processes;
}

}  // namespace

std::string metrics_text(const Run& run, const LauncherState& launcher) {
  Text text(run);
  text.add({"lockstep_build_info", "gauge", "1; the label is the launcher's version of Lockstep."},
           {{{{"version", version()}}, "1"}});
  text.add({"lockstep_ranks", "gauge", "Ranks that the launcher runs on this host."}, one(launcher.ranks));
  text.add({"lockstep_restarts_total", "counter", "Restarts of the ranks by their launcher."},
           one(launcher.restarts));
  for (const auto& family : kOfRanks) text.add(family);
  for (const auto& family : kOfProgress) text.add(family);
  if (!launcher.problem.empty()) text.add_comment(launcher.problem);
  return text.take();
}

std::string LaunchedRanks::metrics() {
  auto ranks = joined(find_runs(processes_of(pids_)));
  if (ranks.progress.size() < static_cast<std::size_t>(count_)) {
    ranks = joined(find_runs(processes_below(::getpid())));
  }
  pids_ = ranks.pids;
  // A phase that begins after this moment does not count yet: otherwise its counter could go back.
  const auto taken_at = steady_now();
  auto run = ranks.read();
  run.id = run_id_;
  run.taken_at = taken_at;
  return metrics_text(run, {.ranks = count_, .restarts = restarts_, .problem = ranks.problem});
}

}  // namespace lockstep::observe
