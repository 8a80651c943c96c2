// Facts from /proc and /sys, read from recorded texts and folders.
#include "lib/doctor/host_facts.h"

#include <gtest/gtest.h>

#include "io/base/proc.h"
#include "tests/io/temporary_folder.h"

namespace tri {
namespace {

TEST(HostFacts, transports_are_the_components_that_stayed_loaded) {
  EXPECT_EQ(transports_of("7f00-7f01 r-xp 00 08:01 1 /usr/lib/openmpi3/mca_pml_ob1.so\n"
                          "7f01-7f02 r--p 00 08:01 1 /usr/lib/openmpi3/mca_pml_ob1.so\n"
                          "7f02-7f03 r-xp 00 08:01 2 /usr/lib/openmpi3/mca_btl_vader.so\n"
                          "7f03-7f04 r-xp 00 08:01 3 /usr/lib/openmpi3/mca_btl_self.so\n"
                          "7f04-7f05 r-xp 00 08:01 4 /usr/lib/openmpi3/mca_coll_basic.so\n"),
            "pml ob1; btl self, vader");
  EXPECT_EQ(transports_of("/usr/lib/mca_pml_ucx.so\n/usr/lib/ucx/libuct_ib.so.0.0.0\n/usr/lib/ucx/libuct_cma.so.0\n"),
            "pml ucx; UCX cma, ib");
  EXPECT_EQ(transports_of("/usr/lib/libmpi.so.40\n"), "");
}

TEST(HostFacts, memory_is_what_the_container_leaves) {
  EXPECT_EQ(available_bytes("MemTotal:  100 kB\nMemAvailable:     2048 kB\n"), 2048 * 1024);
  EXPECT_EQ(available_bytes("MemTotal:  100 kB\n"), std::nullopt);
  EXPECT_EQ(available_bytes(""), std::nullopt);
  const TemporaryFolder folder;
  const std::string root = folder / "";
  EXPECT_EQ(within_container(1000, root), 1000);
  put(root + "sys/fs/cgroup/memory.max", "max");
  put(root + "sys/fs/cgroup/memory.current", "300");
  EXPECT_EQ(within_container(1000, root), 1000);
  put(root + "sys/fs/cgroup/memory.max", "900");
  EXPECT_EQ(within_container(1000, root), 600);
  EXPECT_EQ(within_container(500, root), 500);
  put(root + "sys/fs/cgroup/memory.current", "901");
  EXPECT_EQ(within_container(1000, root), 0);
  // A container that has read large files is full of their pages but still has free memory.
  put(root + "sys/fs/cgroup/memory.stat", "anon 100\nfile 90\ninactive_file 50\nactive_file 20\nshmem 20");
  EXPECT_EQ(within_container(1000, root), 69);
}

TEST(HostFacts, memory_is_what_a_container_of_the_first_version_leaves) {
  const TemporaryFolder folder;
  const std::string root = folder / "", group = root + "sys/fs/cgroup/memory/";
  put(group + "memory.limit_in_bytes", "900");
  put(group + "memory.usage_in_bytes", "800");
  put(group + "memory.stat", "inactive_file 1\nactive_file 2\ntotal_inactive_file 30\ntotal_active_file 40");
  EXPECT_EQ(within_container(1000, root), 170);
}

TEST(HostFacts, lists_of_numbers) {
  EXPECT_EQ(numbers_of_list("0-1,4"), (std::vector<int>{0, 1, 4}));
  EXPECT_EQ(numbers_of_list("3"), std::vector<int>{3});
  EXPECT_TRUE(numbers_of_list("").empty());
  EXPECT_TRUE(numbers_of_list("none").empty());
}

TEST(HostFacts, machines_of_a_kind_have_model_and_instructions_in_common) {
  const std::string one =
      "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nmodel name\t: B\n";
  EXPECT_EQ(cpu_kind(one).substr(0, 6), "A CPU ");
  EXPECT_EQ(cpu_kind(one), cpu_kind("processor\t: 7\nmodel name\t: A CPU\nflags\t\t: fpu avx2\n\n"));
  EXPECT_NE(cpu_kind(one), cpu_kind("model name\t: A CPU\nflags\t\t: fpu avx512f\n\n"));
}

}  // namespace
}  // namespace tri
