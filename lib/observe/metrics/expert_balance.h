// How evenly the rows of a step are divided among the experts of each layer.
#pragma once

#include <span>
#include <string>

namespace tri {

// The balance of one layer.
struct ExpertBalance {
  int layer = 0;        // of the model
  double max_load = 0;  // of the fullest expert, as a multiple of the mean; 0: no expert has rows
  int dead = 0;         // experts without rows
  double entropy = 0;   // of the loads, as a share of that of equal loads
};

// `load`: the rows of each expert.
ExpertBalance balance_of(int layer, std::span<const float> load);

// The worst values of all layers.
struct WorstBalance {
  ExpertBalance fullest, least_even;  // the layers with the largest max_load and with the smallest entropy
  int dead = 0, dead_layers = 0;      // experts without rows in all layers; layers that have some
};

// Requires at least one layer.
WorstBalance worst_of(std::span<const ExpertBalance> layers);

// Returns "fullest expert 2.31 x the mean (layer 3), 2 dead (in 1 layer), lowest entropy 0.91 (layer 3)".
std::string balance_text(const WorstBalance& worst);

}  // namespace tri
