// SPDX-License-Identifier: BSD-3-Clause
#include "training/summary_writer.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/mutex.h>
#include <lockstep/data/images.h>

#include "base/host.h"
#include "base/throw_error.h"
#include "training/event_file.h"

namespace lockstep::training {
namespace {

// Fields of tensorflow.Summary.
constexpr int kValues = 1;
constexpr int kTag = 1;
constexpr int kSimpleValue = 2;
constexpr int kImage = 4;
constexpr int kHisto = 5;
constexpr int kTensor = 8;
constexpr int kMetadata = 9;

// Of tensorflow.SummaryMetadata.
constexpr int kPluginData = 1;
constexpr int kPluginName = 1;
constexpr int kPluginContent = 2;

ProtoMessage summary_of(const ProtoMessage& value) { return ProtoMessage().message(kValues, value); }

ProtoMessage metadata_of(const std::string& plugin, const ProtoMessage& content) {
  return ProtoMessage().message(kPluginData,
                                ProtoMessage().text(kPluginName, plugin).message(kPluginContent, content));
}

// The image with its dimensions in the order of `wanted`; nullopt when `given` names others.
std::optional<at::Tensor> arranged(const at::Tensor& image, std::string_view given, std::string_view wanted) {
  if (given.size() != wanted.size()) return std::nullopt;
  std::vector<std::int64_t> order;
  for (const char dimension : wanted) {
    const auto position = given.find(dimension);
    if (position == std::string_view::npos) return std::nullopt;
    order.push_back(static_cast<std::int64_t>(position));
  }
  return image.permute(order);
}

// [channels, height, width]; undefined when the image does not have these dimensions.
at::Tensor chw(const at::Tensor& image, std::string dataformats) {
  std::ranges::transform(dataformats, dataformats.begin(), [](unsigned char c) { return std::toupper(c); });
  if (image.dim() != std::ssize(dataformats)) return {};
  if (const auto gray = arranged(image, dataformats, "HW")) return gray->unsqueeze(0).expand({3, -1, -1});
  if (const auto one = arranged(image, dataformats, "CHW")) {
    return one->size(0) == 1 ? one->expand({3, -1, -1}) : *one;
  }
  const auto batch = arranged(image, dataformats, "NCHW");
  if (!batch || batch->numel() == 0 || (batch->size(1) != 1 && batch->size(1) != 3)) return {};
  return data::make_grid(*batch, {.padding = 0});
}

at::Tensor as_uint8_pixels(const at::Tensor& image) {
  if (image.scalar_type() == at::kByte) return image;
  return image.to(at::kFloat).mul(255).clamp(0, 255).to(at::kByte);
}

}  // namespace

ProtoMessage scalar_summary(const std::string& tag, double value) {
  return summary_of(ProtoMessage().text(kTag, tag).float32(kSimpleValue, static_cast<float>(value)));
}

ProtoMessage histogram_summary(const std::string& tag, const Histogram& histogram) {
  return summary_of(ProtoMessage().text(kTag, tag).message(kHisto, ProtoMessage()
                                                                       .float64(1, histogram.min)
                                                                       .float64(2, histogram.max)
                                                                       .float64(3, histogram.num)
                                                                       .float64(4, histogram.sum)
                                                                       .float64(5, histogram.sum_squares)
                                                                       .float64s(6, histogram.limits)
                                                                       .float64s(7, histogram.counts)));
}

ProtoMessage image_summary(const std::string& tag, const at::Tensor& image, const std::string& dataformats) {
  if (!image.defined()) throw ArgumentError("add_image: the image is undefined");
  const auto pixels = chw(image.detach().cpu(), dataformats);
  if (!pixels.defined() || pixels.size(0) < 1 || pixels.size(0) > 4 || pixels.numel() == 0) {
    throw_error<ArgumentError>(
        "add_image: an image [{}] does not fit the dataformats {}; they name each dimension once (HW, CHW or "
        "NCHW in any order), with 1 to 4 channels, in a batch 1 or 3",
        fmt::join(image.sizes(), ", "), dataformats);
  }
  const auto png = data::encode_png(as_uint8_pixels(pixels));
  const std::string_view bytes(reinterpret_cast<const char*>(png.const_data_ptr<std::uint8_t>()),
                               png.nbytes());
  return summary_of(ProtoMessage().text(kTag, tag).message(kImage, ProtoMessage()
                                                                       .integer(1, pixels.size(1))
                                                                       .integer(2, pixels.size(2))
                                                                       .integer(3, pixels.size(0))
                                                                       .text(4, bytes)));
}

ProtoMessage text_summary(const std::string& tag, const std::string& text) {
  constexpr int dtype_string = 7;
  const auto shape = ProtoMessage().message(2, ProtoMessage().integer(1, 1));
  return summary_of(
      ProtoMessage()
          .text(kTag, tag + "/text_summary")
          .message(kTensor, ProtoMessage().integer(1, dtype_string).message(2, shape).text(8, text))
          .message(kMetadata, metadata_of("text", {})));
}

ProtoMessage plugin_summary(const std::string& tag, const std::string& plugin, const ProtoMessage& content) {
  return summary_of(ProtoMessage().text(kTag, tag).message(kMetadata, metadata_of(plugin, content)));
}

namespace {

// Fields of tensorboard.hparams.HParamsPluginData.
constexpr int kExperiment = 2;
constexpr int kStartInfo = 3;
constexpr int kEndInfo = 4;

// Of google.protobuf.Value, with the tensorboard.hparams.DataType that belongs to each.
constexpr int kNumber = 2;
constexpr int kString = 3;
constexpr int kTypeString = 1;
constexpr int kTypeNumber = 3;

std::optional<double> as_number(const Value& value) {
  if (const auto* tensor = value.get_if<at::Tensor>()) {
    if (tensor->numel() == 1 && !tensor->is_complex()) return tensor->item<double>();
    return std::nullopt;
  }
  if (value.is<bool>() || value.is<std::int64_t>() || value.is<double>()) return value.as_double();
  return std::nullopt;
}

// A google.protobuf.Value.
ProtoMessage encoded(const std::string& name, const Value& value) {
  if (const auto* text = value.get_if<std::string>()) return ProtoMessage().text(kString, *text);
  if (const auto number = as_number(value)) return ProtoMessage().float64(kNumber, *number);
  throw_error<ArgumentError>(
      "add_hparams: {} should be a bool, an int, a float, a str, a tensor of one element or None, not {}",
      name, repr(value, 100));
}

// A google.protobuf.ListValue.
ProtoMessage encoded_domain(const std::string& name, const Value& value, const Value& domain) {
  const auto* list = domain.get_if<List>();
  if (list == nullptr) {
    throw_error<ArgumentError>("add_hparams: hparam_domain_discrete has no list for {}, but {}", name,
                               repr(domain, 100));
  }
  ProtoMessage result;
  for (const auto& item : list->items) {
    if (item.type_name() != value.type_name()) {
      throw_error<ArgumentError>("add_hparams: hparam_domain_discrete has {} for {}, which is of type {}",
                                 repr(item, 100), name, value.type_name());
    }
    result.message(1, encoded(name, item));
  }
  return result;
}

const std::string& name_of(const Value& key) {
  if (const auto* name = key.get_if<std::string>()) return *name;
  throw_error<ArgumentError>("add_hparams: names should be of type str, not {}", repr(key, 100));
}

ProtoMessage hparam_info(const std::string& name, const Value& value, const Dict& domains) {
  ProtoMessage info;
  info.text(1, name).integer(4, value.is<std::string>() ? kTypeString : kTypeNumber);
  if (const auto* domain = domains.find(name)) info.message(5, encoded_domain(name, value, *domain));
  return info;
}

ProtoMessage plugin_data(const std::string& tag, int field, const ProtoMessage& data) {
  return plugin_summary("_hparams_/" + tag, "hparams", ProtoMessage().message(field, data));
}

}  // namespace

HparamsSummaries hparams_summaries(const Dict& hparams, const Scalars& metrics, const Dict& domains) {
  for (const auto& [key, domain] : domains) {
    if (!hparams.contains(key)) {
      throw_error<ArgumentError>("add_hparams: hparam_domain_discrete has {}, which hparam_dict lacks",
                                 name_of(key));
    }
  }
  ProtoMessage experiment;
  ProtoMessage start;
  for (const auto& [key, value] : hparams) {
    if (value.is<None>()) continue;
    const auto& name = name_of(key);
    start.message(1, ProtoMessage().text(1, name).message(2, encoded(name, value)));
    experiment.message(4, hparam_info(name, value, domains));
  }
  for (const auto& [name, value] : metrics) {
    experiment.message(5, ProtoMessage().message(1, ProtoMessage().text(2, name)));
  }
  constexpr int success = 1;
  return {.experiment = plugin_data("experiment", kExperiment, experiment),
          .session_start = plugin_data("session_start_info", kStartInfo, start),
          .session_end = plugin_data("session_end_info", kEndInfo, ProtoMessage().integer(1, success))};
}

}  // namespace lockstep::training

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
  SummaryWriterOptions options LOCKSTEP_GUARDED_BY(mutex);
  Mutex mutex{};
  std::map<fs::path, EventFile> files LOCKSTEP_GUARDED_BY(mutex){};  // by their folder

  EventFile& file_in(const fs::path& folder) LOCKSTEP_REQUIRES(mutex) {
    if (const auto found = files.find(folder); found != files.end()) return found->second;
    auto& file = files.emplace(folder, EventFile(folder, options.filename_suffix)).first->second;
    if (folder == log_dir && options.purge_step) {
      file.add_session_start(*options.purge_step);
      options.purge_step.reset();
    }
    return file;
  }

  void add(const fs::path& folder, const training::ProtoMessage& summary, Step step, Time walltime) {
    const MutexLock lock(mutex);
    file_in(folder).add_summary(summary, step, walltime);
  }
};

SummaryWriter::SummaryWriter(fs::path log_dir, const SummaryWriterOptions& options) {
  if (!log_dir.empty() && !options.log_dir.empty()) {
    throw_error<ArgumentError>("SummaryWriter: {} and log_dir {} name two folders; leave one of them out",
                               log_dir.string(), options.log_dir.string());
  }
  if (log_dir.empty()) log_dir = options.log_dir;
  if (log_dir.empty()) log_dir = default_log_dir(options.comment);
  state_ = std::make_shared<State>(std::move(log_dir), options);
  state_->file_in(state_->log_dir);
}

void SummaryWriter::add_scalar(const std::string& tag, double scalar_value, Step global_step, Time walltime) {
  state_->add(get_logdir(), training::scalar_summary(tag, scalar_value), global_step, walltime);
}

void SummaryWriter::add_scalar(const std::string& tag, const at::Tensor& scalar_value, Step global_step,
                               Time walltime) {
  if (!scalar_value.defined() || scalar_value.numel() != 1 || scalar_value.is_complex())
    throw_error<ArgumentError>("add_scalar: '{}' is not a real number; give a tensor of one element", tag);
  add_scalar(tag, scalar_value.item<double>(), global_step, walltime);
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
  const MutexLock lock(state_->mutex);
  for (auto& [folder, file] : state_->files) file.sync();
}

void SummaryWriter::close() {
  const MutexLock lock(state_->mutex);
  state_->files.clear();
}

}  // namespace lockstep
