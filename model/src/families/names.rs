//! Tensor names in checkpoints.

use crate::role::Role;

/// Names of a role's tensors in most checkpoints; families name those that differ.
pub fn usual(role: Role) -> &'static [&'static str] {
    match role {
        Role::Embedding => &["model.embed_tokens"],
        Role::AttentionNorm => &["input_layernorm"],
        Role::Query | Role::QueryGate => &["self_attn.q_proj"],
        Role::Key => &["self_attn.k_proj"],
        Role::Value => &["self_attn.v_proj"],
        Role::QueryNorm => &["self_attn.q_norm"],
        Role::KeyNorm => &["self_attn.k_norm"],
        Role::QueryDown
        | Role::QueryUp
        | Role::Latent
        | Role::LatentNorm
        | Role::HeadKey
        | Role::HeadValue => {
            unreachable!("attention is not latent")
        }
        Role::Positions | Role::TokenTypes | Role::EmbeddingNorm => {
            unreachable!("nothing is added to embeddings, and they are not normalised")
        }
        Role::LayerEmbedding
        | Role::LayerInput
        | Role::LayerInputNorm
        | Role::LayerInputGate
        | Role::LayerInputOutput
        | Role::LayerInputOutputNorm
        | Role::LayerScale => unreachable!("layers have no inputs or factors of their own"),
        Role::ExpertLatent | Role::ExpertLatentOutput => unreachable!("experts read whole rows"),
        Role::RouterScale
        | Role::ExpertScales
        | Role::ExpertNorm
        | Role::ExpertOutputNorm
        | Role::SharedOutputNorm => unreachable!("experts have no norms of their own"),
        Role::Sinks => &["self_attn.sinks"],
        Role::AttentionOutput => &["self_attn.o_proj"],
        Role::StateInputGate
        | Role::StateTapsBias
        | Role::StateSkip
        | Role::StateGateDown
        | Role::StateDecayDown
        | Role::StateQueryTaps
        | Role::StateKeyTaps
        | Role::StateValueTaps => unreachable!("gated delta networks have none"),
        Role::StateQuery | Role::StateKey | Role::StateValue => &["linear_attn.in_proj_qkv"],
        Role::StateGate => &["linear_attn.in_proj_z"],
        Role::StateBeta => &["linear_attn.in_proj_b"],
        Role::StateDecay => &["linear_attn.in_proj_a"],
        Role::StateTaps => &["linear_attn.conv1d.weight"],
        Role::StateDecayRate => &["linear_attn.A_log"],
        Role::StateDecayBias => &["linear_attn.dt_bias"],
        Role::StateNorm => &["linear_attn.norm"],
        Role::StateOutput => &["linear_attn.out_proj"],
        Role::FeedForwardNorm => &["post_attention_layernorm"],
        Role::Router => &["mlp.gate"],
        Role::Gate => &["mlp.gate_proj"],
        Role::Up => &["mlp.up_proj"],
        Role::Down => &["mlp.down_proj"],
        Role::LastNorm => &["model.norm"],
        Role::Head => &["lm_head"],
        Role::AttentionOutputNorm | Role::FeedForwardOutputNorm => {
            unreachable!("what is added is not normalised")
        }
        Role::ExpertGate => &["mlp.experts.{}.gate_proj", "mlp.experts.gate_up_proj"],
        Role::ExpertUp => &["mlp.experts.{}.up_proj", "mlp.experts.gate_up_proj"],
        Role::ExpertDown => &["mlp.experts.{}.down_proj", "mlp.experts.down_proj"],
        Role::RouterCorrection => &["mlp.gate.e_score_correction_bias"],
        Role::SharedGate => &["mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"],
        Role::SharedUp => &["mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"],
        Role::SharedDown => &["mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj"],
        Role::SharedRouter => &["mlp.shared_expert_gate"],
    }
}
