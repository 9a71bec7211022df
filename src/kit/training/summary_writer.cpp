// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <ctime>
#include <mutex>

#include <fmt/format.h>

#include <lockstep/training/logging.h>

#include "base/host.h"
#include "training/event_file.h"
#include "training/summary.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using training::EventFile;

fs::path default_log_dir(const std::string& comment) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  char text[32];
  const auto size = std::strftime(text, sizeof(text), "%b%d_%H-%M-%S", &local);
  return fs::path("runs") / fmt::format("{}_{}{}", std::string_view(text, size), host_name(), comment);
}

}  // namespace

struct SummaryWriter::State {
  fs::path log_dir;
  SummaryWriterOptions options;
  std::mutex mutex{};
  std::map<fs::path, EventFile> files{};  // by their folder

  // REQUIRES the mutex.
  EventFile& file_in(const fs::path& folder) {
    if (const auto found = files.find(folder); found != files.end()) return found->second;
    auto& file = files.emplace(folder, EventFile(folder, options.filename_suffix)).first->second;
    if (folder == log_dir && options.purge_step) {
      file.add_session_start(*options.purge_step);
      options.purge_step.reset();
    }
    return file;
  }

  void add(const fs::path& folder, const training::ProtoMessage& summary, Step step, Time walltime) {
    const std::lock_guard lock(mutex);
    file_in(folder).add_summary(summary, step, walltime);
  }
};

SummaryWriter::SummaryWriter(fs::path log_dir, SummaryWriterOptions options) {
  if (log_dir.empty()) log_dir = default_log_dir(options.comment);
  state_ = std::make_shared<State>(std::move(log_dir), std::move(options));
  state_->file_in(state_->log_dir);
}

void SummaryWriter::add_scalar(const std::string& tag, double scalar_value, Step global_step, Time walltime) {
  state_->add(get_logdir(), training::scalar_summary(tag, scalar_value), global_step, walltime);
}

void SummaryWriter::add_scalars(const std::string& main_tag, const Scalars& tag_scalar_dict, Step global_step,
                                Time walltime) {
  const Time time = walltime ? *walltime : training::wall_time_now();
  auto name = main_tag;
  std::ranges::replace(name, '/', '_');
  for (const auto& [tag, value] : tag_scalar_dict) {
    state_->add(get_logdir() / fmt::format("{}_{}", name, tag), training::scalar_summary(main_tag, value),
                global_step, time);
  }
}

void SummaryWriter::add_histogram(const std::string& tag, const at::Tensor& values, Step global_step,
                                  const HistogramBins& bins, Time walltime,
                                  std::optional<std::int64_t> max_bins) {
  const auto histogram = training::make_histogram(values, bins, max_bins);
  state_->add(get_logdir(), training::histogram_summary(tag, histogram), global_step, walltime);
}

void SummaryWriter::add_image(const std::string& tag, const at::Tensor& img_tensor, Step global_step,
                              Time walltime, const std::string& dataformats) {
  const auto summary = training::image_summary(tag, img_tensor, dataformats);
  state_->add(get_logdir(), summary, global_step, walltime);
}

void SummaryWriter::add_images(const std::string& tag, const at::Tensor& img_tensor, Step global_step,
                               Time walltime, const std::string& dataformats) {
  add_image(tag, img_tensor, global_step, walltime, dataformats);
}

void SummaryWriter::add_text(const std::string& tag, const std::string& text_string, Step global_step,
                             Time walltime) {
  state_->add(get_logdir(), training::text_summary(tag, text_string), global_step, walltime);
}

void SummaryWriter::add_hparams(const Dict& hparam_dict, const Scalars& metric_dict,
                                const Dict& hparam_domain_discrete, std::string run_name, Step global_step) {
  const auto summaries = training::hparams_summaries(hparam_dict, metric_dict, hparam_domain_discrete);
  if (run_name.empty()) run_name = fmt::format("{:.6f}", training::wall_time_now());
  EventFile file(get_logdir() / run_name, "");
  file.add_summary(summaries.experiment, global_step, {});
  file.add_summary(summaries.session_start, global_step, {});
  file.add_summary(summaries.session_end, global_step, {});
  for (const auto& [name, value] : metric_dict) {
    file.add_summary(training::scalar_summary(name, value), global_step, {});
  }
}

const fs::path& SummaryWriter::get_logdir() const { return state_->log_dir; }

void SummaryWriter::flush() {
  const std::lock_guard lock(state_->mutex);
  for (auto& [folder, file] : state_->files) file.sync();
}

void SummaryWriter::close() {
  const std::lock_guard lock(state_->mutex);
  state_->files.clear();
}

}  // namespace lockstep
