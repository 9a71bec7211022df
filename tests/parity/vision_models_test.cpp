// SPDX-License-Identifier: BSD-3-Clause
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/models/vision.h>
#include <lockstep/serialize/torch_file.h>

#include "parity/model_case.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using namespace models;

const std::vector<ModelCase> kVisionCases{
    {"bottleneck",
     [] {
       return subject_of(ResNet(ResNetBlock::bottleneck, std::array{1L, 2L, 1L, 1L},
                                ResNetOptions{.weights = std::nullopt,
                                              .num_classes = 10,
                                              .zero_init_residual = true,
                                              .replace_stride_with_dilation = {false, true, true}}));
     }},
    {"basic",
     [] {
       return subject_of(
           ResNet(ResNetBlock::basic, std::array{2L, 1L, 1L, 1L},
                  ResNetOptions{.weights = nullptr, .num_classes = 3, .zero_init_residual = true}));
     }},
    {"resnext",
     [] {
       return subject_of(ResNet(ResNetBlock::bottleneck, std::array{1L, 1L, 1L, 1L},
                                ResNetOptions{.num_classes = 10, .groups = 32, .width_per_group = 4}));
     }},
    {"point_net", [] { return subject_of(PointNet(PointNetOptions{.num_classes = 5})); }, 1e-5},
    {"point_net_plain", [] { return subject_of(PointNet(PointNetOptions{.feature_transform = false})); },
     1e-5},
    {"dgcnn", [] { return subject_of(DGCNN(DGCNNOptions{.output_channels = 5, .k = 6, .emb_dims = 64})); },
     1e-5},
    {"mobilenet_v2", [] { return subject_of(mobilenet_v2({.num_classes = 10})); }},
    {"vit",
     [] {
       return subject_of(VisionTransformer(VisionTransformerOptions{.image_size = 32,
                                                                    .patch_size = 8,
                                                                    .num_layers = 2,
                                                                    .num_heads = 4,
                                                                    .hidden_dim = 32,
                                                                    .mlp_dim = 64,
                                                                    .dropout = 0.1,
                                                                    .attention_dropout = 0.1,
                                                                    .num_classes = 10}));
     },
     1e-5},
    {"vit_logits",
     [] {
       return subject_of(VisionTransformer(VisionTransformerOptions{.image_size = 32,
                                                                    .patch_size = 16,
                                                                    .num_layers = 1,
                                                                    .num_heads = 2,
                                                                    .hidden_dim = 16,
                                                                    .mlp_dim = 24,
                                                                    .num_classes = 3,
                                                                    .representation_size = 20}));
     },
     1e-5},
    {"mobilenet_slim",
     [] {
       return subject_of(
           MobileNetV2(MobileNetV2Options{.num_classes = 5,
                                          .width_mult = 0.35,
                                          .inverted_residual_setting = {{1, 16, 1, 1}, {6, 24, 2, 2}},
                                          .dropout = 0.5}));
     }},
};

const std::vector<std::pair<std::string, std::function<Subject()>>> kLargeNets{
    {"resnet18", [] { return subject_of(resnet18()); }},
    {"resnet34", [] { return subject_of(resnet34()); }},
    {"resnet50", [] { return subject_of(resnet50()); }},
    {"resnet101", [] { return subject_of(resnet101()); }},
    {"resnext50_32x4d", [] { return subject_of(resnext50_32x4d()); }},
    {"vit_b_16", [] { return subject_of(vit_b_16()); }},
    {"vit_tiny_16", [] { return subject_of(vit_tiny_16()); }},
};

class VisionModels : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempFolder>();
    threads_ = at::get_num_threads();
    at::set_num_threads(1);  // as in Python, for equal bits
    std::vector<std::string> large;
    for (const auto& [name, _] : kLargeNets) large.push_back(name);
    exchange_with_python("parity/vision_models.py", folder(), kVisionCases, large);
  }
  static void TearDownTestSuite() {
    at::set_num_threads(threads_);
    folder_.reset();
  }
  static std::string folder() { return folder_->path().string(); }

  static std::unique_ptr<TempFolder> folder_;
  static int threads_;
};

std::unique_ptr<TempFolder> VisionModels::folder_;
int VisionModels::threads_ = 0;

TEST_F(VisionModels, ArePythons) {
  for (const auto& test_case : kVisionCases) expect_pythons(test_case, folder());
}

TEST_F(VisionModels, LargeNetsHavePythonsNamesAndShapes) {
  for (const auto& [name, make] : kLargeNets) {
    Dict shapes;
    for (const auto& [key, tensor] : state_dict(*make().module)) {
      const auto sizes = tensor.as_tensor().sizes();
      shapes.set(key, List(std::vector<Value>(sizes.begin(), sizes.end())));
    }
    EXPECT_TRUE(equal(shapes, load(folder() + "/" + name + ".pt"))) << name;
  }
}

TEST_F(VisionModels, AResNetsClassifierIsReplacedAndCloned) {
  auto net = resnet18();
  net->fc = net->replace_module("fc", torch::nn::Linear(512, 3));
  std::ostringstream text;
  text << net;
  EXPECT_TRUE(text.str().starts_with("ResNet(\n")) << text.str();
  EXPECT_NE(text.str().find("(0): BasicBlock(\n"), std::string::npos) << text.str();
  net->eval();
  const auto images = torch::randn({1, 3, 32, 32});
  const auto copy = std::dynamic_pointer_cast<ResNetImpl>(net->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_TRUE(torch::equal(copy->forward(images), net->forward(images)));
  EXPECT_EQ(net->forward(images).sizes(), at::IntArrayRef({1, 3}));
}

TEST(ModelDetails, VisionErrorsNameTheValue) {
  const auto expect_refused = [](const std::string& part, const auto& action) {
    const auto text = error_of<ArgumentError>(action);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect_refused("groups = 1", [] { resnet18({.groups = 2}); });
  expect_refused("replace_stride_with_dilation", [] {
    resnet34({.replace_stride_with_dilation = {false, false, true}});
  });
  expect_refused("groups is 32, not 2", [] { resnext50_32x4d({.groups = 2}); });
  expect_refused("stride s", [] { mobilenet_v2({.inverted_residual_setting = {{1, 16, 1, 3}}}); });
  expect_refused("width_mult = 0", [] { mobilenet_v2({.width_mult = 0}); });
  expect_refused("hidden_dim is 768, not 192", [] { vit_b_16({.hidden_dim = 192}); });
  expect_refused("vit_tiny_16: num_heads is 3, not 4", [] { vit_tiny_16({.num_heads = 4}); });
  expect_refused("image_size = 30", [] { vit_b_16({.image_size = 30}); });
  expect_refused("num_heads = 7", [] { VisionTransformer wrong(VisionTransformerOptions{.num_heads = 7}); });
  expect_refused("[batch, 3, 32, 32]", [] {
    VisionTransformer(VisionTransformerOptions{.image_size = 32, .num_layers = 1, .hidden_dim = 12})
        ->forward(torch::zeros({1, 3, 32, 16}));
  });
  expect_refused("k = 0", [] { DGCNN wrong(DGCNNOptions{.k = 0}); });
  expect_refused("at least k = 20", [] { DGCNN()->forward(torch::zeros({1, 3, 19})); });
  expect_refused("with 6 coordinates", [] { PointNet()->forward(torch::zeros({1, 6, 4})); });
}

}  // namespace
}  // namespace lockstep::testing
