// SPDX-License-Identifier: BSD-3-Clause
#include "training/summary.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include <fmt/ranges.h>

#include <lockstep/data/images.h>

#include "base/throw_error.h"

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

}  // namespace lockstep::training
