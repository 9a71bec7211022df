// SPDX-License-Identifier: BSD-3-Clause
// Transforms beside live torchvision: the same pixels, text and random numbers. See transform_cases.py.
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/serialize/torch_file.h>

#include "parity/transform_factory.h"
#include "support/python.h"
#include "support/temp_folder.h"
#include "transforms/auto_augment.h"

namespace lockstep::testing {
namespace {

using transforms::OptionalGenerator;

// In the order of transforms::AugmentOp.
constexpr std::array<std::string_view, 15> kOpNames = {
    "Identity", "ShearX",    "ShearY",    "TranslateX", "TranslateY",   "Rotate",   "Brightness", "Color",
    "Contrast", "Sharpness", "Posterize", "Solarize",   "AutoContrast", "Equalize", "Invert"};

struct TransformCase {
  std::string name;
  std::string description;
  std::string text;
  Dict arguments;
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> results;
  std::uint64_t seed;
  double next_normal;
  std::int64_t next_integer;
};

std::vector<at::Tensor> tensors_of(const Value& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& each : values.as_items()) tensors.push_back(each.as_tensor());
  return tensors;
}

TransformCase case_of(const Value& value) {
  return {.name = value["name"].as_string(),
          .description = value["name"].as_string() + " " + repr(value["arguments"]) + " of " +
                         repr(value["inputs"]) + ", seed " + repr(value["seed"]),
          .text = value["text"].as_string(),
          .arguments = value["arguments"].as_dict(),
          .inputs = tensors_of(value["inputs"]),
          .results = tensors_of(value["results"]),
          .seed = static_cast<std::uint64_t>(value["seed"].as_int()),
          .next_normal = value["next"].as_items()[0].as_double(),
          .next_integer = value["next"].as_items()[1].as_int()};
}

class TransformsParity : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const TempFolder folder;
    run_python("parity/transform_cases.py", {.args = {folder.file("cases.pt")}});
    written_ = load(folder / "cases.pt");
    for (const auto& each : written_["cases"].as_items())
      cases_[each["name"].as_string()].push_back(case_of(each));
  }

  // Whether both drew as many numbers, of the same kinds.
  static void compare_states(const TransformCase& expected, const OptionalGenerator& generator) {
    ASSERT_EQ(at::randn({}, generator).item<double>(), expected.next_normal) << expected.description;
    ASSERT_EQ(at::empty({}, at::kLong).random_(generator).item<std::int64_t>(), expected.next_integer)
        << expected.description;
  }

  // To the bit, floats too: both call the same operators.
  static void compare_tensor(const TransformCase& expected, const at::Tensor& found,
                             const at::Tensor& wanted) {
    ASSERT_EQ(found.scalar_type(), wanted.scalar_type()) << expected.description;
    ASSERT_EQ(found.sizes(), wanted.sizes()) << expected.description;
    ASSERT_TRUE(at::equal(found, wanted))
        << expected.description << ": the greatest difference is "
        << (found.to(at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>();
  }

  // `apply` with a generator of its own, and with the default one.
  template <typename Apply>
  static void compare_results(const TransformCase& expected, const Apply& apply) {
    const auto before = expected.inputs[0].clone();
    const OptionalGenerator own = at::make_generator<at::CPUGeneratorImpl>(expected.seed);
    torch::manual_seed(expected.seed);
    for (const auto& generator : {own, OptionalGenerator()}) {
      const std::vector<at::Tensor> results = apply(generator);
      ASSERT_EQ(results.size(), expected.results.size());
      for (std::size_t i = 0; i < results.size(); ++i)
        compare_tensor(expected, results[i], expected.results[i]);
      compare_states(expected, generator);
    }
    ASSERT_TRUE(at::equal(expected.inputs[0], before)) << expected.description;
  }

  static void compare(const TransformCase& expected) {
    const auto transform = make_transform(expected.name, expected.arguments);
    ASSERT_EQ(transform.to_string(), expected.text);
    compare_results(expected, [&](const OptionalGenerator& generator) {
      return std::vector<at::Tensor>{transform(expected.inputs[0], generator)};
    });
  }

  template <typename Mix>
  static void compare_mixing(const std::string& name) {
    ASSERT_GE(cases_[name].size(), 100U) << name;
    for (const auto& each : cases_[name]) {
      const Mix mix(mix_options(each.arguments));
      ASSERT_EQ(mix.to_string(), each.text);
      ASSERT_NO_FATAL_FAILURE(compare_results(each, [&](const OptionalGenerator& generator) {
        const auto [images, labels] = mix(each.inputs[0], each.inputs[1], generator);
        return std::vector<at::Tensor>{images, labels};
      }));
    }
  }

  static void compare_all(const std::string& name, std::size_t least) {
    ASSERT_GE(cases_[name].size(), least) << name;
    for (const auto& each : cases_[name]) ASSERT_NO_FATAL_FAILURE(compare(each));
  }

  static void compare_policy(const transforms::Policy& policy, const Value& expected) {
    ASSERT_EQ(expected.as_items().size(), 2 * policy.size());
    for (std::size_t i = 0; i < 2 * policy.size(); ++i) {
      const auto& step = policy.at(i / 2).at(i % 2);
      const auto& wanted = expected.as_items()[i].as_items();
      EXPECT_EQ(kOpNames.at(static_cast<std::size_t>(step.op)), wanted[0].as_string()) << i;
      EXPECT_EQ(step.p, wanted[1].as_double()) << i;
      EXPECT_EQ(step.magnitude, wanted[2].is<None>() ? 0 : wanted[2].as_int()) << i;
    }
  }

  static Value written_;
  static std::map<std::string, std::vector<TransformCase>> cases_;
};

Value TransformsParity::written_;
std::map<std::string, std::vector<TransformCase>> TransformsParity::cases_;

TEST_F(TransformsParity, Resize) { compare_all("Resize", 40); }
TEST_F(TransformsParity, CenterCrop) { compare_all("CenterCrop", 40); }
TEST_F(TransformsParity, RandomCrop) { compare_all("RandomCrop", 100); }
TEST_F(TransformsParity, RandomResizedCrop) { compare_all("RandomResizedCrop", 100); }
TEST_F(TransformsParity, RandomHorizontalFlip) { compare_all("RandomHorizontalFlip", 100); }
TEST_F(TransformsParity, RandomVerticalFlip) { compare_all("RandomVerticalFlip", 100); }
TEST_F(TransformsParity, Pad) { compare_all("Pad", 40); }
TEST_F(TransformsParity, ToTensor) { compare_all("ToTensor", 40); }
TEST_F(TransformsParity, ToDtype) { compare_all("ToDtype", 40); }
TEST_F(TransformsParity, Normalize) { compare_all("Normalize", 40); }
TEST_F(TransformsParity, Compose) { compare_all("Compose", 140); }
TEST_F(TransformsParity, RandomApply) { compare_all("RandomApply", 100); }
TEST_F(TransformsParity, RandomChoice) { compare_all("RandomChoice", 100); }
TEST_F(TransformsParity, ColorJitter) { compare_all("ColorJitter", 100); }
TEST_F(TransformsParity, Grayscale) { compare_all("Grayscale", 40); }
TEST_F(TransformsParity, RandomGrayscale) { compare_all("RandomGrayscale", 100); }
TEST_F(TransformsParity, GaussianBlur) { compare_all("GaussianBlur", 100); }
TEST_F(TransformsParity, RandomErasing) { compare_all("RandomErasing", 100); }
TEST_F(TransformsParity, RandomRotation) { compare_all("RandomRotation", 100); }
TEST_F(TransformsParity, RandomAffine) { compare_all("RandomAffine", 100); }
TEST_F(TransformsParity, AutoAugment) { compare_all("AutoAugment", 100); }
TEST_F(TransformsParity, PoliciesOfAutoAugment) {
  compare_policy(transforms::policy_steps::kImageNet, written_["policies"].as_items()[0]);
  compare_policy(transforms::policy_steps::kCifar10, written_["policies"].as_items()[1]);
  compare_policy(transforms::policy_steps::kSvhn, written_["policies"].as_items()[2]);
}
TEST_F(TransformsParity, RandAugment) { compare_all("RandAugment", 100); }
TEST_F(TransformsParity, TrivialAugmentWide) { compare_all("TrivialAugmentWide", 100); }
TEST_F(TransformsParity, MixUp) { compare_mixing<transforms::MixUp>("MixUp"); }
TEST_F(TransformsParity, CutMix) { compare_mixing<transforms::CutMix>("CutMix"); }

}  // namespace
}  // namespace lockstep::testing
