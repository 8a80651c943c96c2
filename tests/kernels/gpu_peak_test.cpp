#include "kernels/core/gpu_peak.h"

#include <gtest/gtest.h>

namespace tri {
namespace {

double bf16_peak(std::string_view name, int num_multiprocessors) {
  return gpu_peak_tflops(name, num_multiprocessors, Dtype::kBF16).value_or(0);
}

TEST(GpuPeak, products_of_one_compute_capability_differ) {
  EXPECT_EQ(bf16_peak("NVIDIA H100 80GB HBM3", 132), 989);
  EXPECT_EQ(bf16_peak("NVIDIA H100 PCIe", 114), 756);
  EXPECT_EQ(bf16_peak("NVIDIA H100 NVL", 132), 835);
  EXPECT_EQ(bf16_peak("NVIDIA H800", 132), 989);
  EXPECT_EQ(bf16_peak("NVIDIA H20", 78), 148);
  EXPECT_EQ(bf16_peak("NVIDIA H20-3e", 78), 148);
  EXPECT_EQ(bf16_peak("NVIDIA H200", 132), 989);
  EXPECT_EQ(bf16_peak("NVIDIA GH200 480GB", 132), 989);
  EXPECT_EQ(bf16_peak("NVIDIA A100-SXM4-80GB", 108), 312);
  EXPECT_EQ(bf16_peak("NVIDIA A100 80GB PCIe", 108), 312);
  EXPECT_EQ(bf16_peak("NVIDIA A30", 56), 165);
  EXPECT_EQ(bf16_peak("NVIDIA L40S", 142), 362);
  EXPECT_EQ(bf16_peak("NVIDIA L40", 142), 181);
  EXPECT_EQ(bf16_peak("NVIDIA B200", 148), 2250);
  EXPECT_EQ(bf16_peak("NVIDIA GB200", 152), 2500);
}

TEST(GpuPeak, a_part_of_a_gpu_has_its_part_of_the_peak) {
  EXPECT_EQ(bf16_peak("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 60), 989.0 * 60 / 132);
  EXPECT_EQ(gpu_peak_tflops("NVIDIA H100 80GB HBM3", 132, Dtype::kE4M3), 1979);
  EXPECT_EQ(gpu_peak_tflops("NVIDIA H100 80GB HBM3", 132, Dtype::kF32), 67);
}

// The table does not state the number of multiprocessors of Blackwell, and a driver may report none.
TEST(GpuPeak, a_slice_of_unknown_size_has_no_peak) {
  EXPECT_EQ(gpu_peak_tflops("NVIDIA B200 MIG 1g.23gb", 18, Dtype::kBF16), std::nullopt);
  EXPECT_EQ(gpu_peak_tflops("NVIDIA GB300 MIG 2g.70gb", 0, Dtype::kE4M3), std::nullopt);
  EXPECT_EQ(gpu_peak_tflops("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 0, Dtype::kBF16), std::nullopt);
  EXPECT_EQ(gpu_peak_tflops("NVIDIA H100 80GB HBM3", 0, Dtype::kBF16), std::nullopt);
  EXPECT_EQ(gpu_peak_tflops("NVIDIA B200", 0, Dtype::kBF16), 2250);
}

TEST(GpuPeak, is_none_where_it_is_not_known) {
  EXPECT_EQ(gpu_peak_tflops("NVIDIA H999", 132, Dtype::kBF16), std::nullopt);
  EXPECT_EQ(gpu_peak_tflops("", 132, Dtype::kBF16), std::nullopt);
  EXPECT_EQ(gpu_peak_tflops("NVIDIA A100-SXM4-40GB", 108, Dtype::kE4M3), std::nullopt) << "it does not multiply FP8";
}

}  // namespace
}  // namespace tri
