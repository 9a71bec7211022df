// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/serialize/value.h>

namespace lockstep {

/// Numbers of one step by name: {{"loss", 0.3}, {"accuracy", 0.9}}.
using Scalars = std::map<std::string, double>;

/// Shows numbers of this rank in `lockstep top`, its metrics and its report, under these names:
///
///     lockstep::report({{"loss", loss.item<double>()}, {"perplexity", perplexity}});
///
/// Keeps the last value of each name. Costs less than a line of output, so it can be called in every step;
/// `Tensor::item()` waits for a GPU, however. Does nothing outside of a run. Safe from any thread. Throws
/// ArgumentError for an empty name and one of more than 39 bytes. A 33rd name is not shown and warned of once.
void report(std::initializer_list<std::pair<std::string_view, double>> numbers,
            std::source_location where = std::source_location::current());

/// How add_histogram() chooses the bins: "tensorflow" (fixed, exponential), an estimator of NumPy ("auto",
/// "doane", "fd", "rice", "scott", "sqrt", "sturges"), a number of equal bins, or their edges, ascending.
using HistogramBins = std::variant<std::string, std::int64_t, std::vector<double>>;

/// Options of SummaryWriter.
struct SummaryWriterOptions {
  /// The folder, which may also be the first argument. Default: `runs/<date>_<time>_<host name><comment>`.
  std::filesystem::path log_dir = {};
  /// Appended to the default log_dir. Without effect with another one.
  std::string comment = {};
  /// TensorBoard hides what earlier event files of log_dir have for this step and later ones. A run that
  /// continues at a step passes it.
  std::optional<std::int64_t> purge_step = {};
  /// Appended to the names of event files.
  std::string filename_suffix = {};
};

/// Writes event files for TensorBoard. PyTorch: `torch.utils.tensorboard.SummaryWriter`, with equal events.
///
/// Every event is with the kernel when its call returns, so the end of the process loses none. There is no
/// queue (PyTorch: max_queue, flush_secs). It writes on every rank that makes one; tensorboard_logger()
/// writes on the main rank. Without a `global_step`, the step is 0; without a `walltime` (seconds since
/// 1970), the time is now.
///
/// Copies write to the same files. Thread-safe. Throws Error that names the file that cannot be written; it
/// then ends with the last whole event. Throws ArgumentError as described.
class SummaryWriter {
 public:
  /// The step of a number; nullopt: none.
  using Step = std::optional<std::int64_t>;
  /// Seconds since 1970; nullopt: now.
  using Time = std::optional<double>;

  /// Makes the folder and an event file. Throws ArgumentError if the options name a folder, too.
  explicit SummaryWriter(std::filesystem::path log_dir = {}, const SummaryWriterOptions& options = {});
  /// With all arguments by name: `SummaryWriter writer({.comment = "_lr_0.1"});`.
  template <typename = void>  // so that a path is the folder
  explicit SummaryWriter(const SummaryWriterOptions& options) : SummaryWriter({}, options) {}

  /// PyTorch: `add_scalar` with new_style=False, which stores float32.
  void add_scalar(const std::string& tag, double scalar_value, Step global_step = {}, Time walltime = {});
  /// The element of a tensor, such as a loss; waits for its device. Throws ArgumentError for other tensors.
  void add_scalar(const std::string& tag, const at::Tensor& scalar_value, Step global_step = {},
                  Time walltime = {});

  /// Several curves of one chart, each in an event file in its own folder `<log_dir>/<main_tag>_<name>`.
  void add_scalars(const std::string& main_tag, const Scalars& tag_scalar_dict, Step global_step = {},
                   Time walltime = {});

  /// The distribution of the elements of `values`, of any shape, real dtype and device. Neighbouring bins are
  /// merged until there are about `max_bins`. Throws ArgumentError without elements, when no element is
  /// within the bins, for values that are not finite with bins that follow their range, and for unknown bins.
  void add_histogram(const std::string& tag, const at::Tensor& values, Step global_step = {},
                     const HistogramBins& bins = "tensorflow", Time walltime = {},
                     std::optional<std::int64_t> max_bins = {});

  /// One image. `dataformats` names the dimensions, as in "CHW", "HWC", "HW" and "WH"; 1, 2 (PNG's gray with
  /// alpha), 3 or 4 channels. uint8 has values 0 to 255; other dtypes 0 to 1, others are clamped. With N, the
  /// images form a grid of 8 columns; 1 or 3 channels. Throws ArgumentError for other shapes.
  void add_image(const std::string& tag, const at::Tensor& img_tensor, Step global_step = {},
                 Time walltime = {}, const std::string& dataformats = "CHW");
  /// As add_image().
  void add_images(const std::string& tag, const at::Tensor& img_tensor, Step global_step = {},
                  Time walltime = {}, const std::string& dataformats = "NCHW");

  /// A text in Markdown.
  void add_text(const std::string& tag, const std::string& text_string, Step global_step = {},
                Time walltime = {});

  /// A row of TensorBoard's table of hyperparameters and metrics, in an event file in its own folder
  /// `<log_dir>/<run_name>` (default: the time). Values of `hparam_dict` are bool (stored as a number, as in
  /// PyTorch), int, float, str, a tensor of one element or None (left out). `hparam_domain_discrete` has the
  /// list of possible values of a bool, number or string by name. Throws ArgumentError for other values.
  void add_hparams(const Dict& hparam_dict, const Scalars& metric_dict,
                   const Dict& hparam_domain_discrete = {}, std::string run_name = {}, Step global_step = {});

  /// The folder of the event files.
  const std::filesystem::path& get_logdir() const;
  /// Returns when all events are on the disk, where they outlast a power failure too.
  void flush();
  /// Closes the files. A later event opens new ones.
  void close();

 private:
  struct State;

  std::shared_ptr<State> state_;
};

/// Options of the loggers.
struct LoggerOptions {
  /// Every rank writes: to a file with its rank in the name (log.csv: log.rank1.csv), to the folder rank1 of
  /// a TensorBoard folder, or to lines that begin with its rank. Otherwise log() does nothing on ranks other
  /// than the main one.
  bool every_rank = false;
};

/// Writes the numbers of a step somewhere. A value; copies write to the same place. Thread-safe.
///
/// A logger opens its file at the first record, and a file belongs to one logger. If the file exists, the
/// logger continues it: first it removes an incomplete last line and everything from the first record of that
/// step or a later one. So a run that continues from a checkpoint leaves no step twice. A run that starts
/// anew keeps the records before its first one; use another file. Each record is written by one call to the
/// kernel before log() returns, so the end of the process loses none. Throws Error that names the file that
/// cannot be written; it then ends with the last whole record.
class Logger {
 public:
  /// Writes the numbers of a step.
  using Write = std::function<void(std::int64_t step, const Scalars& scalars)>;

  /// A logger of any kind. Calls of `write` do not overlap.
  explicit Logger(Write write, const LoggerOptions& options = {});

  /// Writes the numbers of a step.
  void log(std::int64_t step, const Scalars& scalars) const;

 private:
  struct State;

  std::shared_ptr<State> state_;
};

/// Lines on stdout: "step 100: accuracy 0.9, loss 0.3". They do not tear the bars of Progress.
Logger console_logger(const LoggerOptions& options = {});

/// A CSV file with a column "step" and one for each name. A name that appears later gets a new last column,
/// for which the file is rewritten; its cells in other rows are empty, as are those of names that a record
/// does not have. Not finite: nan, inf, -inf. Throws ArgumentError for a name with a line break, and Error
/// for a file that is not such a CSV file.
Logger csv_logger(std::filesystem::path file, const LoggerOptions& options = {});

/// A JSON object per line: {"step": 100, "accuracy": 0.9, "loss": 0.3}. Not finite, as in Python's json: NaN,
/// Infinity, -Infinity. Throws ArgumentError for the name "step", and Error for a file that is not such a
/// file.
Logger json_lines_logger(std::filesystem::path file, const LoggerOptions& options = {});

/// add_scalar() of each number, of a SummaryWriter for `log_dir` with the first step as its purge_step.
Logger tensorboard_logger(std::filesystem::path log_dir, const LoggerOptions& options = {});
/// add_scalar() of `writer`, which can add histograms and images too.
Logger tensorboard_logger(SummaryWriter writer, const LoggerOptions& options = {});

/// PyTorch's name: `utils::tensorboard::SummaryWriter`.
namespace utils::tensorboard {
using ::lockstep::SummaryWriter;  ///< the class
}

}  // namespace lockstep
