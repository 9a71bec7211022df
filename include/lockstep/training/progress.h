// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/training/logging.h>

namespace lockstep {

namespace training {

/// range.size(); nullopt if the range has none, such as a loader of an iterable dataset.
template <typename Range>
std::optional<std::int64_t> size_of(Range& range) {
  if constexpr (requires { std::int64_t(range.size()); }) {
    try {
      return static_cast<std::int64_t>(range.size());
    } catch (const ArgumentError&) {  // a loader of an iterable dataset
    }
  }
  return std::nullopt;
}

}  // namespace training

/// Options of Progress, with tqdm's names.
struct ProgressOptions {
  std::string desc = {};                   ///< text before the bar
  std::optional<std::int64_t> total = {};  ///< default: the range's size(), if it has one
  /// The bar stays when it is closed. Otherwise it disappears.
  bool leave = true;
  int file = 2;  ///< the descriptor to write to; stderr
  /// The least seconds between two states that are shown; default: 0.1 on a terminal, 10 elsewhere.
  std::optional<double> mininterval = {};
  /// Default: on all ranks but the main one.
  std::optional<bool> disable = {};
  std::string unit = "it";   ///< what is counted
  std::int64_t initial = 0;  ///< the number of steps that are done already
  /// Every n-th set_postfix() from the first on shows the mean over all ranks, and the others do nothing; 0:
  /// each shows the numbers of its rank.
  std::int64_t average_every = 0;
  /// Seconds of a clock that never goes back; default: the steady clock.
  std::function<double()> clock = {};
};

/// The part of Progress that does not depend on the range's type.
///
/// On a terminal it is the last line, below the bars that were made before it, and as wide as the terminal is
/// at that moment. Lines of write(), console_logger() and Lockstep's own log are written above it; other
/// output to the same terminal tears it. Elsewhere each state is a plain line, written at once. Output that
/// cannot be written is dropped. Thread-safe, except set_postfix() with average_every.
class ProgressBar {
 public:
  /// Throws ArgumentError for a negative total, initial, mininterval or average_every.
  explicit ProgressBar(const ProgressOptions& options = {});
  /// As close().
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Counts `n` more steps, and shows the state when mininterval is over. tqdm: `update`.
  void update(std::int64_t n = 1);
  /// The text before the bar. tqdm: `set_description`.
  void set_description(std::string desc);
  /// Numbers behind the bar. With average_every it is a collective call: all ranks, disabled or not, make the
  /// same number of calls with the same names, else a DesyncError. tqdm: `set_postfix`.
  void set_postfix(const Scalars& values);
  /// A text behind the bar. tqdm: `set_postfix_str`.
  void set_postfix_str(std::string text);
  /// Shows the last state, or removes the bar without `leave`. tqdm: `close`.
  void close();
  /// Starts again at `initial`, with a new clock, also after close(). tqdm: `reset`.
  void reset();

  std::int64_t n() const;  ///< steps so far
  /// The number of steps; nullopt if it is not known.
  std::optional<std::int64_t> total() const;

  /// Writes a line above the bars. tqdm: `tqdm.write`.
  static void write(std::string_view line, int file = 1);

 private:
  struct State;

  std::unique_ptr<State> state_;
};

/// Shows how far a loop is: `for (auto& batch : Progress(loader))`, or `Progress bar({.total = 100})` and
/// bar.update(). The range may be anything that a for loop can go through; an lvalue must outlive this. The
/// bar closes at the end of the range, and a second loop over it starts again. tqdm: `tqdm.tqdm`.
///
///     Progress bar(loader, {.desc = "epoch 1"});
///     for (auto& [images, labels] : bar) {
///       const auto loss = train(images, labels);
///       bar.set_postfix({{"loss", loss.item<double>()}});
///     }
template <typename Range = void>
class Progress : public ProgressBar {
 public:
  class Iterator;

  /// Throws ArgumentError as ProgressBar's.
  explicit Progress(Range&& range, const ProgressOptions& options = {})
      : ProgressBar(with_total(options, range)), range_(std::forward<Range>(range)) {}

  /// Begins a pass over the range.
  Iterator begin() {
    if (started_) reset();
    started_ = true;
    return Iterator(*this);
  }
  /// The end of a pass.
  std::default_sentinel_t end() const { return {}; }

 private:
  static ProgressOptions with_total(const ProgressOptions& options, Range& range) {
    auto counted = options;
    if (!counted.total) counted.total = training::size_of(range);
    return counted;
  }

  Range range_;
  bool started_ = false;
};

template <>
class Progress<void> : public ProgressBar {
 public:
  using ProgressBar::ProgressBar;
};

Progress() -> Progress<>;
Progress(ProgressOptions) -> Progress<>;
template <typename Range>
  requires(!std::same_as<std::remove_cvref_t<Range>, ProgressOptions>)
Progress(Range&&, ProgressOptions = {}) -> Progress<Range>;

/// Progress(range, options): `for (auto& [images, labels] : tqdm(loader))`. tqdm: `tqdm.tqdm`.
template <typename Range>
Progress<Range> tqdm(Range&& range, const ProgressOptions& options = {}) {
  return Progress<Range>(std::forward<Range>(range), options);
}

/// One pass; a move-only input iterator.
template <typename Range>
class Progress<Range>::Iterator {
 public:
  decltype(auto) operator*() { return *position_; }
  Iterator& operator++() {
    bar_->update();
    ++position_;
    close_at_end();
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t /*end*/) const { return !(position_ != end_); }

 private:
  friend class Progress;
  explicit Iterator(Progress& bar)
      : bar_(&bar), position_(std::begin(bar.range_)), end_(std::end(bar.range_)) {
    close_at_end();
  }
  void close_at_end() {
    if (!(position_ != end_)) bar_->close();
  }

  using Items = std::remove_reference_t<Range>;

  Progress* bar_;
  decltype(std::begin(std::declval<Items&>())) position_;
  decltype(std::end(std::declval<Items&>())) end_;
};

}  // namespace lockstep
