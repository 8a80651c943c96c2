// trireme doctor: checks the machines of a job.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "app/job_config.h"
#include "io/base/log.h"
#include "lib/doctor/doctor.h"

namespace tri {
namespace {

struct DoctorArguments {
  std::string config, dir, device = "auto";
  std::vector<std::string> overrides;
  DoctorOptions doctor;
  bool full = false, json = false;
};

// Returns the folder in which a run of this config stores its checkpoints, for any number of ranks.
std::string checkpoint_folder(const Config& config) {
  if (!config.checkpoint.dir.empty()) return config.checkpoint.dir;
  return (config.run.dir.empty() ? "runs/" + config.run.name : config.run.dir) + "/checkpoints";
}

// Returns the folder, or its nearest existing parent if no run has created it.
std::string existing(std::filesystem::path folder) {
  std::error_code problem;
  while (!folder.empty() && !std::filesystem::is_directory(folder, problem)) folder = folder.parent_path();
  return folder.empty() ? "." : folder.string();
}

Result<Verdict> examine(const DoctorArguments& options, Job& job) {
  log_identify(job.world_rank(), "");
  // A driver usually hangs when a device is opened, which is before any check.
  CheckDeadline deadline(options.doctor.check_seconds, job);
  deadline.begin("the opening of the checkpoint folder and the devices");
  DoctorOptions doctor = options.doctor;
  doctor.depth = options.full ? Depth::kFull : Depth::kQuick;
  DeviceChoice choice = *enum_from_name<DeviceChoice>(options.device);
  std::string folder = options.dir;
  if (!options.config.empty()) {
    const auto config = load_open_config(options.config, options.overrides, job);
    if (!config) return config.error();
    if (choice == DeviceChoice::kAuto) choice = config.value().config.run.device;
    if (folder.empty()) folder = checkpoint_folder(config.value().config);
  }
  doctor.storage_dir = existing(folder);
  const auto plan = plan_device(choice, gather_host_facts(choice, job));
  if (!plan) return plan.error();
  const auto device = open_planned_device(plan.value(), job);
  if (!device) return device.error();
  const DoctorReport report = run_doctor(doctor, job, *device.value(), deadline);
  if (job.world_rank() == 0) options.json ? print_answer(doctor_json(report)) : print_text(doctor_text(report));
  return report.verdict;
}

}  // namespace

void add_doctor_command(Command& app, int& status, int* argc, char*** argv) {
  auto* command = app.add_subcommand(
      "doctor", "Check the nodes of a job before it starts, or suspect nodes, with mpirun -n RANKS trireme doctor");
  auto options = std::make_shared<DoctorArguments>();
  command->add_option("config", options->config, "YAML run config, which names the device and the checkpoint folder");
  command->add_option("--set", options->overrides, "section.key=value, overrides the file; repeatable");
  command->add_flag("--full", options->full,
                    "Also measure compute, copies and links; takes up to two minutes instead of ten seconds");
  command->add_option(
      "--dir", options->dir,
      "Folder whose storage is measured; default: the config's checkpoint folder, else the current folder");
  command
      ->add_option("--device", options->device,
                   "auto, cpu or cuda; auto = the config's device, else the node's GPUs if it has any")
      ->check(choice_of({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option("--check-seconds", options->doctor.check_seconds,
                   "Seconds after which a check counts as hung and ends the doctor with status 41")
      ->check(in_range(1.0, 3600.0))
      ->capture_default_str();
  std::vector<std::string> names;
  for (const Check& check : all_checks()) names.emplace_back(check.rule.name);
  command
      ->add_option("--only", options->doctor.only,
                   "Run only the checks with these names, separated by commas; --json prints all names")
      ->delimiter(',')
      ->check(choice_of(names));
  command->add_flag("--json", options->json, "JSON instead of a table: app/JSON.md");
  command->footer(
      "One process checks its own node. To compare nodes, start one rank per GPU on each of them. A value that is\n"
      "worse than those of the other nodes, or than a fixed limit, is reported after three measurements confirm it.\n"
      "Exit status: 0 healthy; 40 suspect: slower than its peers, or configured differently; 41 bad: do not use it.\n"
      "Any other status means that the doctor itself failed; lib/ERRORS.md lists these codes.");
  command->callback([=, &status] {
    if (options->doctor.only == std::vector<std::string>{kNicLoopback})
      for (const auto& [variable, value] : kNicLoopbackVariables) ::setenv(variable, value, 1);
    status = run_job(argc, argv, [&](Job& job) {
      const auto verdict = examine(*options, job);
      return verdict ? exit_status(verdict.value()) : job_status(job, verdict.error());
    });
  });
}

}  // namespace tri
