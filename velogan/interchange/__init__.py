"""Exchange of models with other programs: import, export, the Hugging Face Hub and the model card."""
