// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <chrono>

#include <lockstep/base/mutex.h>
#include <lockstep/metrics/metrics.h>
#include <lockstep/training/progress.h>

#include "base/launched_rank.h"
#include "base/throw_error.h"
#include "training/meter.h"
#include "training/terminal.h"

namespace lockstep {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A mean in which newer numbers count more. tqdm: smoothing=0.3.
class MovingMean {
 public:
  void add(double value) {
    sum_ = kWeight * value + (1 - kWeight) * sum_;
    weight_ = kWeight + (1 - kWeight) * weight_;
  }
  double mean() const { return weight_ > 0 ? sum_ / weight_ : 0; }

 private:
  static constexpr double kWeight = 0.3;
  double sum_ = 0;
  double weight_ = 0;
};

void check_options(const ProgressOptions& options) {
  const bool valid = options.total.value_or(0) >= 0 && options.initial >= 0 &&
                     options.mininterval.value_or(0) >= 0 && options.average_every >= 0;
  if (!valid) {
    throw_error<ArgumentError>(
        "Progress: total ({}), initial ({}), mininterval ({}) and average_every ({}) should not be negative",
        options.total.value_or(0), options.initial, options.mininterval.value_or(0), options.average_every);
  }
}

}  // namespace

struct ProgressBar::State {
  explicit State(const ProgressOptions& given) : options(given) {
    check_options(options);
    enabled = options.disable ? !*options.disable : shared_world("ProgressBar").rank == 0;
    if (!options.clock) options.clock = steady_seconds;
    meter.desc = options.desc;
    meter.total = options.total;
    meter.unit = options.unit;
    start();
  }

  void start() LOCKSTEP_REQUIRES(mutex) {
    line.reset();
    open = enabled;
    meter.n = meter.initial = measured_n = options.initial;
    start_time = shown_time = measured_time = options.clock();
    steps = seconds = {};
    meter.rate.reset();
    const bool terminal = enabled && training::terminal_width(options.file).has_value();
    constexpr double terminal_interval = 0.1;
    constexpr double plain_interval = 10;
    interval = options.mininterval.value_or(terminal ? terminal_interval : plain_interval);
    if (!terminal) return;
    line.emplace(options.file);
    line->show(text(start_time));
  }

  void show_if_due() LOCKSTEP_REQUIRES(mutex) {
    if (!open) return;
    const double now = options.clock();
    if (now - shown_time < interval || now <= measured_time) return;
    shown_time = now;
    if (meter.n != measured_n) {
      steps.add(static_cast<double>(meter.n - measured_n));
      seconds.add(now - measured_time);
      measured_n = meter.n;
      measured_time = now;
      meter.rate = steps.mean() / seconds.mean();
    }
    show(now);
  }

  void show(double now) LOCKSTEP_REQUIRES(mutex) {
    if (line) {
      line->show(text(now));
    } else {
      training::write_line(options.file, text(now) + '\n');
    }
  }

  void close() LOCKSTEP_REQUIRES(mutex) {
    if (!open) return;
    open = false;
    meter.rate.reset();  // of all steps
    const auto last = options.leave ? text(options.clock()) + '\n' : "";
    if (line) {
      line->leave(last);
      line.reset();
    } else if (options.leave) {
      training::write_line(options.file, last);
    }
  }

  // One column is left free, because some terminals wrap when the last one is written.
  std::string text(double now) LOCKSTEP_REQUIRES(mutex) {
    meter.elapsed = now - start_time;
    const auto width = line ? training::terminal_width(options.file) : std::nullopt;
    return training::meter_text(meter, width ? std::max(*width - 1, 1) : 0);
  }

  Mutex mutex;
  ProgressOptions options;  // do not change once the bar is made
  training::Meter meter LOCKSTEP_GUARDED_BY(mutex);
  bool enabled LOCKSTEP_GUARDED_BY(mutex) = false;
  bool open LOCKSTEP_GUARDED_BY(mutex) = false;  // and shown
  double interval LOCKSTEP_GUARDED_BY(mutex) = 0;
  double start_time LOCKSTEP_GUARDED_BY(mutex) = 0;
  double shown_time LOCKSTEP_GUARDED_BY(mutex) = 0;
  double measured_time LOCKSTEP_GUARDED_BY(mutex) = 0;
  std::int64_t measured_n LOCKSTEP_GUARDED_BY(mutex) = 0;
  MovingMean steps LOCKSTEP_GUARDED_BY(mutex);
  MovingMean seconds LOCKSTEP_GUARDED_BY(mutex);
  std::int64_t postfixes LOCKSTEP_GUARDED_BY(mutex) = 0;
  std::optional<training::TerminalLine> line LOCKSTEP_GUARDED_BY(mutex);
};

ProgressBar::ProgressBar(const ProgressOptions& options) : state_(std::make_unique<State>(options)) {}
ProgressBar::~ProgressBar() { close(); }

void ProgressBar::update(std::int64_t n) {
  const MutexLock lock(state_->mutex);
  state_->meter.n += n;
  state_->show_if_due();
}

void ProgressBar::set_description(std::string desc) {
  const MutexLock lock(state_->mutex);
  state_->meter.desc = std::move(desc);
  state_->show_if_due();
}

void ProgressBar::set_postfix(const Scalars& values) {
  const auto every = state_->options.average_every;
  if (every == 0 || shared_world("ProgressBar").size == 1)
    return set_postfix_str(training::postfix_text(values));
  std::int64_t earlier = 0;
  {
    const MutexLock lock(state_->mutex);
    earlier = state_->postfixes++;
  }
  if (earlier % every == 0) set_postfix_str(training::postfix_text(reduce_value(values)));
}

void ProgressBar::set_postfix_str(std::string text) {
  const MutexLock lock(state_->mutex);
  state_->meter.postfix = std::move(text);
  state_->show_if_due();
}

void ProgressBar::close() {
  const MutexLock lock(state_->mutex);
  state_->close();
}

void ProgressBar::reset() {
  const MutexLock lock(state_->mutex);
  state_->start();
}

std::int64_t ProgressBar::n() const {
  const MutexLock lock(state_->mutex);
  return state_->meter.n;
}

std::optional<std::int64_t> ProgressBar::total() const { return state_->options.total; }

void ProgressBar::write(std::string_view line, int file) {
  training::write_line(file, std::string(line) + '\n');
}

}  // namespace lockstep
