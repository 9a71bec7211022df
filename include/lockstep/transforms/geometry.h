// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <lockstep/base/literal.h>

/// torchvision.transforms.v2 for tensors, with its names, arguments, defaults, pixels and random numbers.
///
/// An image is uint8 or float, [channels, height, width] or with leading batch dimensions, of any strides.
/// The result may share the memory of the image. Transforms are values without state between calls; calls on
/// several threads need a generator each. Without a generator they draw from LibTorch's default CPU
/// generator, which torch::manual_seed() seeds, as torchvision does. Wrong arguments and images throw
/// ArgumentError.
namespace lockstep::transforms {

/// The generator of a transform's random numbers, or none for LibTorch's default CPU generator.
using OptionalGenerator = std::optional<at::Generator>;

/// One number, a list, or none: what Python's functions take as `int`, `(int, int)` or None.
template <typename T>
struct Values : std::vector<T> {
  Values() = default;
  Values(std::nullopt_t) {}
  template <typename Number>
    requires(std::is_arithmetic_v<Number> && (std::integral<Number> || std::floating_point<T>))
  Values(Number value) : std::vector<T>{static_cast<T>(value)} {}  // NOLINT: implicit by design
  Values(std::initializer_list<T> values) : std::vector<T>(values) {}
  explicit Values(std::vector<T> values) : std::vector<T>(std::move(values)) {}
};

/// One edge, or {height, width}.
using Size = Values<std::int64_t>;
/// The same number of pixels on all sides, {left and right, top and bottom}, or {left, top, right, bottom}.
using Padding = Values<std::int64_t>;
/// A number, a list of numbers, or none.
using Numbers = Values<double>;
/// {least, greatest}.
using Range = std::pair<double, double>;

/// The size of an image in pixels.
struct ImageSize {
  std::int64_t height = 0;  ///< rows of pixels
  std::int64_t width = 0;   ///< columns of pixels
};

/// A rectangle of pixels. It may extend beyond the image.
struct Box {
  std::int64_t top = 0;     ///< first row
  std::int64_t left = 0;    ///< first column
  std::int64_t height = 0;  ///< rows of pixels
  std::int64_t width = 0;   ///< columns of pixels
  bool operator==(const Box&) const = default;
};

/// An image that is decoded when a transform asks for it, so that a crop decodes only what it takes.
struct EncodedImage {
  std::int64_t height = 0;  ///< pixels
  std::int64_t width = 0;   ///< pixels
  /// Decodes the pixels of a box. `result`: the size to which the caller resizes them, if any. The decoder
  /// may then return fewer pixels than the box has, but not fewer than the result.
  std::function<at::Tensor(const Box& box, const std::optional<ImageSize>& result)> decode;

  /// Decodes the whole image.
  at::Tensor decode_all() const { return decode({.height = height, .width = width}, std::nullopt); }
};

/// How values between pixels are computed. torchvision: v2.InterpolationMode.
enum class InterpolationMode : std::uint8_t {
  NEAREST,        ///< the pixel at the rounded-down place, as OpenCV has it
  NEAREST_EXACT,  ///< the nearest pixel, as Pillow has it
  BILINEAR,       ///< a weighted mean of 2 x 2 pixels
  BICUBIC,        ///< a cubic curve through 4 x 4 pixels
};

/// The pixels beyond the edges: a number, the outermost pixel, or the image mirrored without or with its
/// outermost pixel. torchvision: the strings of `padding_mode`.
enum class PaddingMode : std::uint8_t {
  constant,   ///< a number
  edge,       ///< the outermost pixel
  reflect,    ///< the image mirrored, without its outermost pixel
  symmetric,  ///< the image mirrored, with its outermost pixel
};
/// The names of the enumerators, which Literal accepts.
OneOf<"constant", "edge", "reflect", "symmetric"> literals_of(PaddingMode);

/// Options of Resize, with torchvision's names and defaults.
struct ResizeOptions {
  InterpolationMode interpolation = InterpolationMode::BILINEAR;  ///< how values between pixels are computed
  Size max_size = {};  ///< limit of the longer edge, where the size is one edge; its size where that is none
  bool antialias = true;  ///< for bilinear and bicubic
};

/// torchvision: v2.Resize.
class Resize {
 public:
  /// One number is the size of the shorter edge. Throws ArgumentError when sizes are not positive or max_size
  /// does not go with the size.
  explicit Resize(Size size, const ResizeOptions& options = {});
  Resize(Size size, InterpolationMode interpolation)
      : Resize(std::move(size), {.interpolation = interpolation}) {}
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  at::Tensor operator()(const EncodedImage& image, const OptionalGenerator& generator) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  ImageSize size_of_result(std::int64_t height, std::int64_t width) const;

  Size size_;
  ResizeOptions options_;
};

/// The middle of an image, with zeros around one that is smaller. torchvision: v2.CenterCrop.
class CenterCrop {
 public:
  /// One number is both edges.
  explicit CenterCrop(Size size);
  /// The part of an image of that size; beyond it where the image is smaller. Draws nothing.
  Box get_params(std::int64_t height, std::int64_t width, const OptionalGenerator& generator = {}) const;
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  at::Tensor operator()(const EncodedImage& image, const OptionalGenerator& generator) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  Size size_;
};

/// Options of RandomCrop, with torchvision's names and defaults.
struct RandomCropOptions {
  Padding padding = {};                            ///< added to every image
  bool pad_if_needed = false;                      ///< pad images that are smaller than the crop
  Numbers fill = 0;                                ///< for "constant"; one number, or one per channel
  Literal<PaddingMode> padding_mode = "constant";  ///< the pixels beyond the edges
};

/// torchvision: v2.RandomCrop.
class RandomCrop {
 public:
  /// One number is both edges.
  explicit RandomCrop(Size size, const RandomCropOptions& options = {});
  /// `RandomCrop({224, 160})`: an array, so that the list is not a crop of 224 with a padding of 160.
  template <std::size_t edges>
  explicit RandomCrop(const std::int64_t (&size)[edges], const RandomCropOptions& options = {})  // NOLINT
      : RandomCrop(Size(std::vector<std::int64_t>(size, size + edges)), options) {}
  template <std::integral Number>
    requires(!std::same_as<Number, bool>)
  RandomCrop(Size size, Number padding)
      : RandomCrop(std::move(size), RandomCropOptions{.padding = padding}) {}
  /// Draws the part of an image of that size. It begins or ends beyond the image where it takes padding.
  /// Throws ArgumentError when image and padding are smaller than the crop.
  Box get_params(std::int64_t height, std::int64_t width, const OptionalGenerator& generator = {}) const;
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  at::Tensor operator()(const EncodedImage& image, const OptionalGenerator& generator) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  Size size_;
  RandomCropOptions options_;
};

/// Options of RandomResizedCrop, with torchvision's names and defaults.
struct RandomResizedCropOptions {
  Range scale = {0.08, 1.0};             ///< of the area of the part, relative to the image
  Range ratio = {3.0 / 4.0, 4.0 / 3.0};  ///< of its width to its height
  InterpolationMode interpolation = InterpolationMode::BILINEAR;  ///< how values between pixels are computed
  bool antialias = true;  ///< for bilinear and bicubic, when the part is made smaller
};

/// A part of the image of random area and shape, resized. torchvision: v2.RandomResizedCrop.
class RandomResizedCrop {
 public:
  /// One number is both edges. Throws ArgumentError when a range is not {least, greatest} of positive
  /// numbers.
  explicit RandomResizedCrop(Size size, const RandomResizedCropOptions& options = {});
  /// Draws the part of an image of that size.
  Box get_params(std::int64_t height, std::int64_t width, const OptionalGenerator& generator = {}) const;
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  at::Tensor operator()(const EncodedImage& image, const OptionalGenerator& generator) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  Size size_;
  RandomResizedCropOptions options_;
  Range log_ratio_;
};

/// Mirrors left and right with probability p. torchvision: v2.RandomHorizontalFlip.
class RandomHorizontalFlip {
 public:
  explicit RandomHorizontalFlip(double p = 0.5);
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  double p_;
};

/// Mirrors top and bottom with probability p. torchvision: v2.RandomVerticalFlip.
class RandomVerticalFlip {
 public:
  explicit RandomVerticalFlip(double p = 0.5);
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  double p_;
};

/// Options of Pad, with torchvision's names and defaults.
struct PadOptions {
  Numbers fill = 0;                                ///< for "constant"; one number, or one per channel
  Literal<PaddingMode> padding_mode = "constant";  ///< the pixels beyond the edges
};

/// torchvision: v2.Pad.
class Pad {
 public:
  explicit Pad(Padding padding, const PadOptions& options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  Padding padding_;
  PadOptions options_;
};

/// Options of RandomRotation, with torchvision's names and defaults.
struct RandomRotationOptions {
  InterpolationMode interpolation = InterpolationMode::NEAREST;  ///< nearest or bilinear
  bool expand = false;  ///< enlarge the image so that all of it is seen
  Numbers center = {};  ///< {x, y} of a pixel; default: the middle of the image
  Numbers fill = 0;     ///< one number, or one per channel; none: zeros, with which edges are interpolated
};

/// Anticlockwise. torchvision: v2.RandomRotation.
class RandomRotation {
 public:
  /// `degrees`: {least, greatest}, or one number for {-number, number}.
  explicit RandomRotation(Numbers degrees, const RandomRotationOptions& options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  Range degrees_;
  RandomRotationOptions options_;
};

/// Options of RandomAffine, with torchvision's names and defaults.
struct RandomAffineOptions {
  Numbers translate = {};  ///< {x, y}: the greatest parts of width and height, in [0, 1]
  Numbers scale = {};      ///< {least, greatest}
  /// In degrees: one number for {-number, number} or {least, greatest}, along x; or both of x, then both of
  /// y.
  Numbers shear = {};
  InterpolationMode interpolation = InterpolationMode::NEAREST;  ///< nearest or bilinear
  Numbers fill = 0;     ///< one number, or one per channel; none: zeros, with which edges are interpolated
  Numbers center = {};  ///< {x, y} of a pixel; default: the middle of the image
};

/// torchvision: v2.RandomAffine.
class RandomAffine {
 public:
  /// `degrees` of rotation: {least, greatest}, or one number for {-number, number}.
  explicit RandomAffine(Numbers degrees, const RandomAffineOptions& options = {});
  at::Tensor operator()(const at::Tensor& image, const OptionalGenerator& generator = {}) const;
  /// The transform as torchvision prints it.
  std::string to_string() const;

 private:
  Range degrees_;
  RandomAffineOptions options_;
};

}  // namespace lockstep::transforms
