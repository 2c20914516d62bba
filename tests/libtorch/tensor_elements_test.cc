// The elements of a tensor as a checkpoint moves them. CPU memory stands for a
// device: tensors there are copied by the same calls.
#include "libtorch/tensor_elements.h"

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

// All bytes in order, asked for in blocks of so many.
std::vector<std::byte> ReadAll(const at::Tensor& tensor, size_t block) {
  TensorElements elements(tensor);
  std::vector<std::byte> all(static_cast<size_t>(tensor.numel()) *
                             tensor.element_size());
  for (size_t from = 0; from < all.size(); from += block) {
    const absl::Status status = elements.Read(
        static_cast<int64_t>(from), absl::MakeSpan(all).subspan(from, block));
    EXPECT_TRUE(status.ok()) << status;
  }
  return all;
}

std::vector<std::byte> BytesOf(const at::Tensor& tensor) {
  const at::Tensor in_order = tensor.contiguous();
  const auto* data = static_cast<const std::byte*>(in_order.const_data_ptr());
  return {data, data + in_order.nbytes()};
}

std::vector<at::Tensor> Layouts(at::ScalarType dtype) {
  at::manual_seed(5);
  const auto draw = [&](at::IntArrayRef sizes) {
    return at::randn(sizes).to(dtype);
  };
  return {draw({}), draw({300'001}),
          draw({700, 600}).t(),  // more than are found at a time
          draw({40, 50}).slice(1, 3, 45, 2),
          draw({4, 6, 5, 7}).to(at::MemoryFormat::ChannelsLast)};
}

TEST(TensorElementsTest, AreReadAndWrittenInTheirOrder) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kBFloat16, at::kBool, at::kLong, at::kComplexFloat,
        at::kFloat8_e5m2}) {
    for (const at::Tensor& tensor : Layouts(dtype)) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " of " +
                   std::to_string(tensor.numel()));
      const size_t size = tensor.element_size();
      for (const size_t block : {size * 1000'000, size * 200'000, size * 777}) {
        EXPECT_EQ(ReadAll(tensor, block), BytesOf(tensor)) << block;
      }
      at::Tensor other =
          at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
      other.fill_(9);
      TensorElements elements(other);
      const std::vector<std::byte> bytes = BytesOf(tensor);
      const size_t block = size * 777;
      for (size_t from = 0; from < bytes.size(); from += block) {
        const absl::Status status =
            elements.Write(static_cast<int64_t>(from),
                           absl::MakeConstSpan(bytes).subspan(from, block));
        ASSERT_TRUE(status.ok()) << status;
      }
      EXPECT_EQ(BytesOf(other), bytes);
    }
  }
}

TEST(TensorElementsTest, AreNeededWhereThereIsNoAddress) {
  const at::Tensor tensor = at::zeros({3, 4});
  EXPECT_FALSE(TensorElements::AreNeededFor(tensor));
  EXPECT_TRUE(TensorElements::AreNeededFor(tensor.t()));
  EXPECT_TRUE(TensorElements::AreNeededFor(
      at::zeros({3}, at::TensorOptions(at::kMeta))));
}

TEST(TensorElementsTest, ThatCannotBeCopiedAreAnError) {
  // LibTorch throws: a tensor of that kind has no values.
  TensorElements elements(at::zeros({3}, at::TensorOptions(at::kMeta)));
  std::vector<std::byte> bytes(3 * sizeof(float));
  const absl::Status status = elements.Read(0, absl::MakeSpan(bytes));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message().rfind("meta", 0), 0u) << status;
}

}  // namespace
}  // namespace terrace
